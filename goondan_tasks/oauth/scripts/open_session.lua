-- Store a session, unless a live one asks for the same.
-- KEYS  request, session, sessions, state (missing if it has none)
-- ARGV  id, document, expires at (ms), kept after that (ms), reusable until so long before its end (ms),
--       what the keys of sessions begin with
-- Returns the id of the session that is to be used. Sent again it finds the one it stored.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local live = redis.call('GET', KEYS[1])
if live then
  local facts = redis.call('HMGET', ARGV[6] .. live, 'status', 'expires')
  if facts[1] == 'pending' and tonumber(facts[2]) > now + ARGV[5] then return live end
end
local expires, gone = tonumber(ARGV[3]), ARGV[3] + ARGV[4]
redis.call('HSET', KEYS[2], 'document', ARGV[2], 'status', 'pending', 'reason', '', 'expires', ARGV[3])
redis.call('PEXPIREAT', KEYS[2], string.format('%d', gone))
redis.call('SET', KEYS[1], ARGV[1], 'PX', math.max(1, expires - now))
if KEYS[4] then redis.call('SET', KEYS[4], ARGV[1], 'PX', math.max(1, gone - now)) end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - ARGV[4])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[3], math.max(1, gone - now, redis.call('PTTL', KEYS[3])))
return ARGV[1]
