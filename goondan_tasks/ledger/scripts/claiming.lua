-- Claims calls. Shared by claim.lua, claim_on_reserve.lua and others; ttl.lua, tracing.lua and numbers.lua are put
-- before this.

-- Begin a batch. close_claims writes it, the keys that its claims share each once, and the leases first: a record that
-- says running, without a lease, would never be swept.
local function open_claims()
  local time = redis.call('TIME')
  return {now = time[1] * 1000 + math.floor(time[2] / 1000), leases = {}, running = {}, records = {}}
end

-- Whether a record is that of another call: the digests differ. In the record of a plain call that has ended, the
-- digest precedes the arguments (finishing.lua).
local function is_other(key, digest)
  local record = redis.call('HMGET', key, 'digest', 'args')
  local known = record[1] or string.match(record[2] or '', '^%S*') or ''
  return known ~= '' and known ~= digest
end

-- Claim a call.
-- keys     call, due, running:<agent>, calls:<agent>
-- terms    lease (ms), ttl (of the record, s), worker, idempotent ('1' or '0'), most (attempts),
--          limit (the export's for one run, ms, 0 = none); if it has limits, admit (a function, which takes when it was
--          queued and its deadline, in ms, its JSON and the limit that it waits for; see claim_on_reserve.lua)
-- absent   for a call without a record: its JSON, digest, deadline (ms, '' = none), queue timeout (ms), '1' if a record
--          of another call is 'taken', indexes of traces (as tracing.lua takes them)
-- Returns {verdict, attempt, queued at (ms), now (ms), what retry.lua has stored, approver, the record's call JSON};
-- verdicts:
--   run                  the caller holds the claim: run the handler
--   expired | poisoned   the caller holds the claim: store that error
--   limited              so it does, too: a rate would admit the call only after its deadline
--   waiting              it is in the wait queue of a limit: drop the message
--   held | done          another worker has the call, or its time is still to come, or it has ended or is pending: drop
--                        the message
--   taken                the record is that of another call: drop the message, and say so
--   absent               there is no record: claim again, with the call's JSON
-- or the error of Redis, if the record is damaged.
-- The same token again (the answer was lost) gets the same answer.
-- Only a sweep decides whether another worker is dead, never a claim.
local function claim_call(claims, keys, id, token, terms, absent)
  local now = claims.now
  local same = claims.records[keys[1]] -- by an earlier message of this reservation
  if same then return {'held', same.attempt, same.queued, now} end
  local record = redis.pcall('HMGET', keys[1], 'status', 'attempt', 'queuedAt', 'deadline', 'token',
    'verdict', 'deaths', 'retried', 'approved', 'call', 'waiting')
  if record.err then return record end
  local status, attempt = record[1], number_in(record[2], 0)
  local queued = number_in(record[3], now)
  if status and absent and absent[5] == '1' and is_other(keys[1], absent[2]) then
    return {'taken', attempt, queued, now}
  end
  if status == 'done' or status == 'dead' or status == 'pending' then
    return {'done', attempt, queued, now}
  end
  if record[5] == token then
    return {record[6], attempt, queued, now, record[8], record[9], record[10]}
  end
  if not status and not absent then return {'absent', 0, now, now} end
  local verdict, fields = 'run', {}
  if not status then
    local deadline = tonumber(absent[3]) or now + absent[4]
    if deadline < now then verdict = 'expired' end
    fields = {'call', absent[1], 'digest', absent[2], 'producers', '', 'queuedAt', now, 'deadline', deadline,
      'celery', '1'}
    redis.pcall('ZADD', keys[4], now, id)
    redis.pcall('ZREMRANGEBYRANK', keys[4], 0, -10001)
    keep_for(keys[2], terms.ttl) -- for calls with a record, accepting them has extended this
    keep_for(keys[4], terms.ttl)
    index_trace(absent[6], id, now, terms.ttl)
  elseif status == 'running' or status == 'scheduled' then
    return {'held', attempt, queued, now}
  elseif number_in(record[4]) < now then
    verdict = 'expired'
  end
  local answered
  if verdict == 'run' then
    if number_in(record[7], 0) >= 5 * terms.most then
      verdict = 'poisoned'
    else
      local word, permits
      if terms.admit then word, permits = terms.admit(queued, number_in(record[4]), record[10], record[11]) end
      if word == 'absent' or word == 'waiting' then
        return {word, attempt, queued, now, false, false, record[10]}
      end
      if permits then fields = {'permits', permits} end
      answered, attempt = word, attempt + 1
    end
  end
  claims.records[keys[1]] = {
    fields = fields, token = token, terms = terms, verdict = verdict, attempt = attempt, queued = queued,
    -- accept.lua made the record live for this long beyond its deadline, so the first run need not extend it
    ttl = (attempt ~= 1 or absent) and terms.ttl,
  }
  claims.leases[#claims.leases + 1], claims.leases[#claims.leases + 2] = now + terms.lease, id
  local running = claims.running[keys[3]] or {}
  running[#running + 1], running[#running + 2], claims.running[keys[3]] = now, id, running
  return {answered or verdict, attempt, queued, now, record[8], record[9], record[10]}
end

local function write_claim(key, claim, now)
  local terms = claim.terms
  redis.call('HSET', key, 'status', 'running', 'token', claim.token, 'worker', terms.worker,
    'verdict', claim.verdict, 'attempt', claim.attempt, 'notStarted', '1', 'claimedAt', now,
    'idempotent', terms.idempotent, 'maxAttempts', terms.most, 'limit', terms.limit, unpack(claim.fields))
  if claim.ttl then redis.call('EXPIRE', key, claim.ttl) end
end

-- Write the batch.
local function close_claims(claims, due, ttl)
  if #claims.leases == 0 then return end
  redis.call('ZADD', due, unpack(claims.leases))
  for key, claim in pairs(claims.records) do write_claim(key, claim, claims.now) end
  for running, ids in pairs(claims.running) do
    redis.pcall('ZADD', running, unpack(ids)) -- only a list: if it is damaged, the claims count all the same
    keep_for(running, ttl)
  end
end

-- Claim a single call whose message the caller has. The record's call JSON is returned only if the call is run again
-- or was approved: then another message with the same id may differ from the record.
local function claim_alone(keys, id, token, terms, absent)
  local claims = open_claims()
  local answer = claim_call(claims, keys, id, token, terms, absent)
  if answer.err then return answer end
  close_claims(claims, keys[2], terms.ttl)
  if absent then keep_for(keys[2], terms.ttl) end -- it may be the only call
  if answer[2] <= 1 and not answer[6] then answer[7] = nil end
  return answer
end
