-- How a run ends; shared by finish.lua and finish_event.lua.
-- KEYS  call, due, running:<agent>, celery-task-meta-<id>
-- ARGV  id, token, final status, outcome, Celery's result record, record TTL s, results channel prefix,
--       the notification, '1' if the result says that the call is cancelled, dead-letters:<agent> or ''
-- Returns the time in ms; 0 if the claim is no longer ours; -1 if the call is cancelled, and only that may
-- be its result.
local function finish_call()
  local record = redis.call('HMGET', KEYS[1], 'token', 'producers', 'cancelled')
  if record[1] ~= ARGV[2] then return 0 end
  if record[3] and ARGV[9] ~= '1' then return -1 end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', KEYS[1], 'status', ARGV[3], 'outcome', ARGV[4], 'finishedAt', now)
  redis.call('HDEL', KEYS[1], 'token', 'verdict', 'producers', 'notStarted', 'deadline', 'idempotent', 'maxAttempts',
    'deaths', 'retried', 'completion', 'approval')
  redis.call('EXPIRE', KEYS[1], ARGV[6])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  if ARGV[10] ~= '' then
    redis.call('ZADD', ARGV[10], now, ARGV[1])
    redis.call('ZREMRANGEBYSCORE', ARGV[10], '-inf', now - ARGV[6] * 1000)
    redis.call('ZREMRANGEBYRANK', ARGV[10], 0, -10001)
    redis.call('EXPIRE', ARGV[10], ARGV[6])
  end
  redis.call('SET', KEYS[4], ARGV[5], 'EX', ARGV[6])
  redis.call('PUBLISH', KEYS[4], ARGV[5])
  for producer in string.gmatch(record[2] or '', '%S+') do
    redis.call('PUBLISH', ARGV[7] .. producer, ARGV[8])
  end
  return now
end
