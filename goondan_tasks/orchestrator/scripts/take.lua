-- Take calls that wait for a worker, in order to end them. If the caller dies first, a sweep ends them as expired.
-- KEYS  due
-- ARGV  token, lease (ms), record TTL (s), call key prefix, then the ids
-- Damaged records are left out. Returns {id, attempt, queued at (ms)} of each call that the caller now holds and must end.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken = {}
for i = 5, #ARGV do
  local key = ARGV[4] .. ARGV[i]
  local record = redis.pcall('HMGET', key, 'status', 'cancelled', 'attempt', 'queuedAt')
  if record[1] == 'queued' and not record[2] then
    redis.call('HSET', key, 'status', 'running', 'token', ARGV[1])
    redis.call('EXPIRE', key, ARGV[3])
    redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[i])
    taken[#taken + 1] = {ARGV[i], tonumber(record[3] or 0), tonumber(record[4])}
  end
end
return taken
