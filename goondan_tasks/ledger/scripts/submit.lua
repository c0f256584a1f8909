-- Accept a call: its record, its place in the indexes and its message, or nothing.
-- KEYS  call, due, calls:<agent>, queue, its bell
-- ARGV  id, call JSON, digest, producer, the call's own deadline in ms ('' = none), queue timeout ms,
--       record TTL s, message ('' = sent by other means)
-- Returns {'queued', now ms}, {'known', status} or {'conflict', status}.
local status = redis.call('HGET', KEYS[1], 'status')
if status then
  if redis.call('HGET', KEYS[1], 'digest') ~= ARGV[3] then return {'conflict', status} end
  if status ~= 'done' and status ~= 'dead' then
    local waiting = redis.call('HGET', KEYS[1], 'producers') or ''
    if not string.find(' ' .. waiting .. ' ', ' ' .. ARGV[4] .. ' ', 1, true) then
      redis.call('HSET', KEYS[1], 'producers', waiting .. ' ' .. ARGV[4])
    end
  end
  return {'known', status}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- queuedAt is kept to the microsecond: it is the order in which calls wait for a limit
local deadline = tonumber(ARGV[5]) or now + ARGV[6]
local ttl = math.ceil(ARGV[7] + math.max(0, deadline - now) / 1000)
redis.call('HSET', KEYS[1], 'status', 'queued', 'call', ARGV[2], 'digest', ARGV[3],
  'producers', ARGV[4], 'queuedAt', time[1] * 1000 + time[2] / 1000, 'deadline', deadline, 'attempt', 0)
redis.call('EXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], deadline, ARGV[1])
redis.call('EXPIRE', KEYS[2], ttl)
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -10001)
redis.call('EXPIRE', KEYS[3], ttl)
if ARGV[8] ~= '' then
  redis.call('LPUSH', KEYS[4], ARGV[8])
  if redis.call('LLEN', KEYS[5]) == 0 then redis.call('LPUSH', KEYS[5], '1') end
end
return {'queued', now}
