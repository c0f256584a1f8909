-- Take a call for one run. A call that a plain Celery producer queued gets its record here.
-- Asked again with the same token (the answer was lost on its way), it answers the same.
-- KEYS  call, due, running:<agent>, calls:<agent>
-- ARGV  id, token, worker, lease ms, record TTL s, '1' if idempotent, max attempts,
--       then for such a call, or '' to learn whether it is one: call JSON, digest,
--       its deadline in ms ('' = none), queue timeout ms
-- Returns {verdict, attempt, queued at ms, now ms, what retry.lua has kept}; verdicts:
--   run       the caller holds the claim: run the handler
--   expired | poisoned   the caller holds the claim: store that error
--   held | done          the call is somebody else's, or final: drop the message
--   absent               there is no record: claim it with the call's JSON
-- Whether somebody else is dead is for the sweep to decide, never for a claim.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'queuedAt', 'deadline', 'token',
  'verdict', 'deaths', 'retried')
local status, attempt = record[1], tonumber(record[2] or 0)
local queued = tonumber(record[3] or now)
if status == 'done' or status == 'dead' or status == 'pending' then
  return {'done', attempt, queued, now}
end
if record[5] == ARGV[2] then return {record[6], attempt, queued, now, record[8]} end
if not status and not ARGV[8] then return {'absent', 0, now, now} end
local verdict = 'run'
if not status then
  local deadline = tonumber(ARGV[10]) or now + ARGV[11]
  if deadline < now then verdict = 'expired' end
  redis.call('HSET', KEYS[1], 'call', ARGV[8], 'digest', ARGV[9], 'producers', '', 'queuedAt', now,
    'deadline', deadline)
  redis.call('ZADD', KEYS[4], now, ARGV[1])
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -10001)
  redis.call('EXPIRE', KEYS[4], ARGV[5])
elseif status == 'running' then
  return {'held', attempt, queued, now}
elseif tonumber(record[4]) < now then
  verdict = 'expired'
end
if verdict == 'run' then
  if tonumber(record[7] or 0) >= tonumber(ARGV[7]) then
    verdict = 'poisoned'
  else
    attempt = attempt + 1
  end
end
redis.call('HSET', KEYS[1], 'status', 'running', 'token', ARGV[2], 'worker', ARGV[3],
  'verdict', verdict,
  'attempt', attempt, 'notStarted', '1', 'claimedAt', now, 'idempotent', ARGV[6], 'maxAttempts', ARGV[7])
redis.call('EXPIRE', KEYS[1], ARGV[5])
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('ZADD', KEYS[3], now, ARGV[1])
redis.call('EXPIRE', KEYS[3], ARGV[5])
return {verdict, attempt, queued, now, record[8]}
