-- Ends runs. Shared by finish.lua, finish_step.lua and finish_event.lua; permits.lua, failures.lua and streams.lua are put
-- before this. A damaged record or index of one call or agent must not keep the results of others from being stored: both are read and written
-- with pcall.
local INLINE_BYTES = 16384 -- a notification with a larger result carries only the id; clients then read the record
local PLAIN_FIELDS = 14 -- the number of fields of a call that was only submitted, marked and run once
local ARGS = '"callChain":[],"args":' -- precedes the arguments, which end the JSON of a plain call

-- Begin a batch. close_ends writes the keys that its calls share, each once. Terms are those of limits (permits.lua).
local function open_ends(terms)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return {now = now, terms = terms, notifications = {}, ids = {}, running = {}, failures = {}}
end

local function namespace_of(key, id) return string.sub(key, 1, -#id - 6) end -- of the key call:<id>

-- Add calls to an index of those that have ended, until their records expire; `ids` alternates scores and ids.
local function list_ended(index, ids, now, ttl)
  redis.pcall('ZADD', index, 'NX', unpack(ids)) -- one that is ended again, because a script was broken off, keeps its time
  redis.pcall('ZREMRANGEBYSCORE', index, '-inf', now - ttl * 1000)
  redis.pcall('ZREMRANGEBYRANK', index, 0, -10001)
  redis.call('EXPIRE', index, ttl)
end

-- Store a result, and drop the fields of the record that are no longer needed. If the result repeats all of the call
-- but its arguments, and the record has no further fields, only the result and the arguments are kept; the digest (for
-- a second submission) and the end time (for an orchestrator) precede the arguments. Each field costs more memory
-- than its value.
local function keep_result(key, ttl, now, ended, call, digest, permits, not_started, has_result)
  local has_key = permits and string.sub(permits, 1, 4) == 'key ' -- other calls look for the outcome
  local at = not (has_result or has_key) and ended.kind == 'plain' and call
    and redis.call('HLEN', key) == PLAIN_FIELDS + (permits and 1 or 0) + (not_started and 1 or 0)
    and string.find(call, ARGS, 1, true)
  if at then
    redis.call('DEL', key)
    local args = string.format('%s %d %s', digest, now, string.sub(call, at + #ARGS, -2))
    redis.call('HSET', key, 'status', ended.status, 'args', args, 'result', ended.result)
  else
    if not has_result then
      redis.call('HSET', key, 'status', ended.status, 'outcome', ended.outcome, 'finishedAt', now,
        'result', ended.result)
      keep_failure(key, ended.failure)
    end
    local dropped = 'idempotent'
    if ended.status == 'dead' then dropped = 'verdict' end -- who replays a dead letter wants to know
    -- while its handler runs, the claim stays: a sweep ends it if this is broken off
    redis.call('HDEL', key, ended.still_runs and 'verdict' or 'token', 'verdict', 'producers', 'notStarted', 'deadline',
      dropped, 'maxAttempts', 'deaths', 'retried', 'completion', 'approval', 'limit', 'overran', 'permits')
  end
  redis.call('EXPIRE', key, ttl)
end

-- End one run.
-- key    the call's record
-- ttl    of the record (s)
-- names  prefixes: results (channel of a producer), running, meta (Celery's result record), dead_letters
-- ended  id, token, agent, status (the final one), outcome, kind ('cancelled' if that is the result, 'plain' if the
--        result repeats all of the call but its arguments), result (JSON), done_at (ISO 8601, for Celery's record),
--        failure (see failures.lua), still_runs (whether its handler does, which keeps the claim), before (what is called
--        before the result is stored, with whether there is one already; or nothing), is_event (then it may have a stream
--        although its record does not say so)
-- Returns the time (ms); 0 if the claim was lost; -1 if the call is cancelled and the result does not say so; -2 if its
-- record is damaged: then the call leaves the lists of those that run.
local function finish_call(ends, key, ttl, names, ended)
  local record = redis.pcall('HMGET', key, 'token', 'producers', 'cancelled', 'celery', 'call', 'digest', 'permits',
    'waiting', 'notStarted', 'status', 'result', 'keep')
  if record[1] ~= ended.token and not record.err then return 0 end
  if record[3] and ended.kind ~= 'cancelled' then return -1 end
  -- a script that stored a result, and was broken off before it had ended the claim
  local has_result = record[10] == 'done' or record[10] == 'dead'
  if ended.before and not record.err then ended.before(has_result) end
  local running = ends.running[ended.agent] or {}
  running[#running + 1], ends.running[ended.agent] = ended.id, running
  if not ended.still_runs then ends.ids[#ends.ids + 1] = ended.id end
  if record.err then return -2 end
  if has_result then ended.status, ended.result = record[10], record[11] end
  if record[7] or record[8] then ends.limits = ends.limits or open_limits(ends.terms, ends.now) end
  if record[8] then pcall(ends.limits.take_out, ended.id) end
  if record[7] then
    ends.limits.leave({id = ended.id, token = ended.token, limits = record[7], has_begun = not record[9]})
  end
  -- first: if this is broken off, it is ended again with the result
  if record[12] or ended.is_event then end_stream(namespace_of(key, ended.id), ended.id, record[12]) end
  keep_result(key, ttl, ends.now, ended, record[5], record[6], record[7], record[9], has_result)
  if ended.status == 'dead' then list_ended(names.dead_letters .. ended.agent, {ends.now, ended.id}, ends.now, ttl) end
  if ended.outcome == 'error' then
    local index = namespace_of(key, ended.id) .. 'failures:' .. ended.agent
    local failed = ends.failures[index] or {ttl = ttl}
    failed[#failed + 1], failed[#failed + 2], ends.failures[index] = ends.now, ended.id, failed
  end
  if record[4] then -- submitted by plain Celery, which reads its own result record
    local meta = '{"task_id":"' .. ended.id .. '","status":"SUCCESS","traceback":null,"children":[],"date_done":"'
      .. ended.done_at .. '","result":' .. ended.result .. '}'
    redis.call('SET', names.meta .. ended.id, meta, 'EX', ttl)
    redis.call('PUBLISH', names.meta .. ended.id, meta)
  end
  local notification = ended.id
  if #ended.result <= INLINE_BYTES then notification = notification .. ' ' .. ended.result end
  for producer in string.gmatch(record[2] or '', '%S+') do
    local list = ends.notifications[producer] or {}
    list[#list + 1], ends.notifications[producer] = notification, list
  end
  return ends.now
end

-- End the batch: end the claims, and notify each producer of all its calls in one message. Each line of it has an id
-- and, after a space, the result.
local function close_ends(ends, due, names)
  for agent, ids in pairs(ends.running) do redis.pcall('ZREM', names.running .. agent, unpack(ids)) end
  for producer, list in pairs(ends.notifications) do
    redis.call('PUBLISH', names.results .. producer, table.concat(list, '\n'))
  end
  for index, failed in pairs(ends.failures) do list_ended(index, failed, ends.now, failed.ttl) end
  if ends.limits then ends.limits.close() end
  -- last: the results are stored, and a sweep takes what stays here out of all lists
  if #ends.ids > 0 then redis.pcall('ZREM', due, unpack(ends.ids)) end
end
