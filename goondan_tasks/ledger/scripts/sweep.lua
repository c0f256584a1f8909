-- Take the calls about which something must be decided: past their deadline, or their lease.
-- The caller holds their claims and must settle each one before its own lease ends.
-- KEYS  due
-- ARGV  token, lease ms, most calls to take, call key prefix
-- Returns a list of {id, verdict, attempt, queued at ms, call JSON};
-- verdicts: expired | unknown | poisoned (store that error), requeue (release with a message).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])) do
  local key = ARGV[4] .. id
  local record = redis.call('HMGET', key, 'status', 'attempt', 'queuedAt', 'call', 'started',
    'idempotent', 'maxAttempts')
  local status, verdict = record[1], 'requeue'
  if status ~= 'queued' and status ~= 'running' then
    redis.call('ZREM', KEYS[1], id)
  else
    if status == 'queued' then
      verdict = 'expired'
    elseif record[5] and record[6] ~= '1' then
      verdict = 'unknown'
    elseif tonumber(record[2]) >= tonumber(record[7] or 1) then
      verdict = 'poisoned'
    end
    redis.call('HSET', key, 'status', 'running', 'token', ARGV[1])
    redis.call('ZADD', KEYS[1], now + ARGV[2], id)
    taken[#taken + 1] = {id, verdict, tonumber(record[2]), tonumber(record[3]), record[4]}
  end
end
return taken
