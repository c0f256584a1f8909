-- How runs end; shared by finish.lua and finish_event.lua.
local INLINE_BYTES = 16384 -- a notification beyond this carries the id alone, and the waiter reads the result itself
local PLAIN_FIELDS = 13 -- so many has the record of a call to which nothing has happened but its one run
local ARGS = '"callChain":[],"args":' -- what the arguments follow, the last of a plain call's JSON

-- Begin a batch: what its calls have in common is gathered in it, and written once, by close_ends.
local function open_ends()
  local time = redis.call('TIME')
  return {now = time[1] * 1000 + math.floor(time[2] / 1000), told = {}, ids = {}, running = {}}
end

-- Keep of a call what is still asked for. If its result repeats all that the call says but the arguments, and
-- the record tells nothing else, these two are kept, behind what a second submit and an orchestrator ask for: each
-- field takes more memory than its value.
local function keep_result(key, ttl, now, ended, call, digest)
  local at = ended.kind == 'plain' and call and redis.call('HLEN', key) == PLAIN_FIELDS
    and string.find(call, ARGS, 1, true)
  if at then
    redis.call('DEL', key)
    local args = string.format('%s %d %s', digest, now, string.sub(call, at + #ARGS, -2))
    redis.call('HSET', key, 'status', ended.status, 'args', args, 'result', ended.result)
  else
    redis.call('HSET', key, 'status', ended.status, 'outcome', ended.outcome, 'finishedAt', now, 'result', ended.result)
    redis.call('HDEL', key, 'token', 'verdict', 'producers', 'notStarted', 'deadline', 'idempotent', 'maxAttempts',
      'deaths', 'retried', 'completion', 'approval')
  end
  redis.call('EXPIRE', key, ttl)
end

-- End one run.
-- key    the call's
-- ttl    of the record, s
-- names  prefixes: results (channel of a producer), running, meta (Celery's result record), dead_letters
-- ended  id, token, agent, status (the final one), outcome, kind ('cancelled' if the result says so, 'plain' if it
--        repeats all names of the call), result (JSON), done_at (ISO 8601, for Celery's record)
-- Returns the time in ms; 0 if the claim is no longer ours; -1 if the call is cancelled, and only that may
-- be its result.
local function finish_call(ends, key, ttl, names, ended)
  local record = redis.call('HMGET', key, 'token', 'producers', 'cancelled', 'celery', 'call', 'digest')
  if record[1] ~= ended.token then return 0 end
  if record[3] and ended.kind ~= 'cancelled' then return -1 end
  keep_result(key, ttl, ends.now, ended, record[5], record[6])
  local running = ends.running[ended.agent] or {}
  running[#running + 1], ends.running[ended.agent] = ended.id, running
  ends.ids[#ends.ids + 1] = ended.id
  if ended.status == 'dead' then
    local letters = names.dead_letters .. ended.agent
    redis.call('ZADD', letters, ends.now, ended.id)
    redis.call('ZREMRANGEBYSCORE', letters, '-inf', ends.now - ttl * 1000)
    redis.call('ZREMRANGEBYRANK', letters, 0, -10001)
    redis.call('EXPIRE', letters, ttl)
  end
  if record[4] then -- plain Celery has submitted it, and reads its result as Celery does
    local meta = '{"task_id":"' .. ended.id .. '","status":"SUCCESS","traceback":null,"children":[],"date_done":"'
      .. ended.done_at .. '","result":' .. ended.result .. '}'
    redis.call('SET', names.meta .. ended.id, meta, 'EX', ttl)
    redis.call('PUBLISH', names.meta .. ended.id, meta)
  end
  local notification = ended.id
  if #ended.result <= INLINE_BYTES then notification = notification .. ' ' .. ended.result end
  for producer in string.gmatch(record[2] or '', '%S+') do
    local list = ends.told[producer] or {}
    list[#list + 1], ends.told[producer] = notification, list
  end
  return ends.now
end

-- End the batch: the claims are free, and each producer is notified of its calls that have ended, all in one message:
-- lines of an id, and its result behind a space.
local function close_ends(ends, due, names)
  if #ends.ids > 0 then redis.call('ZREM', due, unpack(ends.ids)) end
  for agent, ids in pairs(ends.running) do redis.call('ZREM', names.running .. agent, unpack(ids)) end
  for producer, list in pairs(ends.told) do
    redis.call('PUBLISH', names.results .. producer, table.concat(list, '\n'))
  end
end
