-- Take or renew a Connection's lease.
-- KEYS  connection, connections (all of them -> when one was last begun, in ms)
-- ARGV  token, owner, lease (ms), TTL (s), connector, its member in connections
-- Returns 0 if it is held by this token now, or how long another one holds it (ms).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('HMGET', KEYS[1], 'token', 'until')
local left = (tonumber(record[2]) or 0) - now
if record[1] and record[1] ~= ARGV[1] and left > 0 and left <= tonumber(ARGV[3]) then return left end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'owner', ARGV[2], 'until', now + ARGV[3])
if record[1] ~= ARGV[1] then
  redis.call('HSET', KEYS[1], 'since', now, 'connector', ARGV[5])
  redis.pcall('ZADD', KEYS[2], now, ARGV[6]) -- only a list: if it is damaged, the Connection runs all the same
  redis.pcall('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 1000 * ARGV[4])
end
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('EXPIRE', KEYS[2], ARGV[4])
return 0
