-- How a call is claimed; shared by claim.lua and claim_on_reserve.lua; keeping.lua stands before this.

-- What is run again, or was approved, is what stands in the record: another message of its id may say otherwise.
local function call_on_record(key, attempt, approved)
  return (approved or attempt > 1) and redis.call('HGET', key, 'call')
end

-- Claim a call.
-- keys     call, due, running:<agent>, calls:<agent>
-- terms    lease (ms), ttl (record's, s), worker, idempotent ('1' or '0'), most (attempts)
-- absent   for a call without a record: its JSON, digest, deadline in ms ('' = none), queue timeout in ms,
--          indexes of traces (as tracing.lua takes them, which stands before this)
-- Returns {verdict, attempt, queued at ms, now ms, what retry.lua has kept, who has approved it, the call's
-- JSON or nothing}; verdicts:
--   run       the caller holds the claim: run the handler
--   expired | poisoned   the caller holds the claim: store that error
--   held | done          the call is somebody else's, or final: drop the message
--   absent               there is no record: claim it with the call's JSON
-- Asked again with the same token (the answer was lost on its way), it answers the same.
-- Whether somebody else is dead is for the sweep to decide, never for a claim.
local function claim_call(keys, id, token, terms, absent)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local record = redis.call('HMGET', keys[1], 'status', 'attempt', 'queuedAt', 'deadline', 'token',
    'verdict', 'deaths', 'retried', 'approved')
  local status, attempt = record[1], tonumber(record[2] or 0)
  local queued = tonumber(record[3] or now)
  if status == 'done' or status == 'dead' or status == 'pending' then
    return {'done', attempt, queued, now}
  end
  if record[5] == token then
    local call = call_on_record(keys[1], attempt, record[9])
    return {record[6], attempt, queued, now, record[8], record[9], call}
  end
  if not status and not absent then return {'absent', 0, now, now} end
  local verdict = 'run'
  if not status then
    local deadline = tonumber(absent[3]) or now + absent[4]
    if deadline < now then verdict = 'expired' end
    redis.call('HSET', keys[1], 'call', absent[1], 'digest', absent[2], 'producers', '', 'queuedAt', now,
      'deadline', deadline, 'celery', '1')
    redis.call('ZADD', keys[4], now, id)
    redis.call('ZREMRANGEBYRANK', keys[4], 0, -10001)
    keep_for(keys[2], terms.ttl) -- whatever was accepted stands in it, and keeps it for longer
    keep_for(keys[4], terms.ttl)
    index_trace(absent[5], id, now, terms.ttl)
  elseif status == 'running' then
    return {'held', attempt, queued, now}
  elseif tonumber(record[4]) < now then
    verdict = 'expired'
  end
  if verdict == 'run' then
    if tonumber(record[7] or 0) >= 5 * terms.most then
      verdict = 'poisoned'
    else
      attempt = attempt + 1
    end
  end
  redis.call('HSET', keys[1], 'status', 'running', 'token', token, 'worker', terms.worker,
    'verdict', verdict, 'attempt', attempt, 'notStarted', '1', 'claimedAt', now,
    'idempotent', terms.idempotent, 'maxAttempts', terms.most)
  redis.call('EXPIRE', keys[1], terms.ttl)
  redis.call('ZADD', keys[2], now + terms.lease, id)
  redis.call('ZADD', keys[3], now, id)
  redis.call('EXPIRE', keys[3], terms.ttl)
  return {verdict, attempt, queued, now, record[8], record[9], call_on_record(keys[1], attempt, record[9])}
end
