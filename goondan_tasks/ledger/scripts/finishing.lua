-- How a run ends; shared by finish.lua and finish_event.lua.
-- keys   call, due
-- ttl    of the record, s
-- names  prefixes: results (channel of a producer), running, meta (Celery's result record), dead_letters
-- ended  id, token, agent, status (the final one), outcome, is_cancelled ('1' if the result says so), result (JSON),
--        done_at (ISO 8601, for Celery's record)
-- told   collects the notifications: producer -> list
-- Returns the time in ms; 0 if the claim is no longer ours; -1 if the call is cancelled, and only that may
-- be its result.
local INLINE_BYTES = 16384 -- a notification beyond this carries the id alone, and the waiter reads the result itself

local function finish_call(keys, ttl, names, ended, told)
  local record = redis.call('HMGET', keys[1], 'token', 'producers', 'cancelled')
  if record[1] ~= ended.token then return 0 end
  if record[3] and ended.is_cancelled ~= '1' then return -1 end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('HSET', keys[1], 'status', ended.status, 'outcome', ended.outcome, 'finishedAt', now)
  redis.call('HDEL', keys[1], 'token', 'verdict', 'producers', 'notStarted', 'deadline', 'idempotent', 'maxAttempts',
    'deaths', 'retried', 'completion', 'approval')
  redis.call('EXPIRE', keys[1], ttl)
  redis.call('ZREM', keys[2], ended.id)
  redis.call('ZREM', names.running .. ended.agent, ended.id)
  if ended.status == 'dead' then
    local letters = names.dead_letters .. ended.agent
    redis.call('ZADD', letters, now, ended.id)
    redis.call('ZREMRANGEBYSCORE', letters, '-inf', now - ttl * 1000)
    redis.call('ZREMRANGEBYRANK', letters, 0, -10001)
    redis.call('EXPIRE', letters, ttl)
  end
  local meta = '{"task_id":"' .. ended.id .. '","status":"SUCCESS","traceback":null,"children":[],"date_done":"'
    .. ended.done_at .. '","result":' .. ended.result .. '}'
  redis.call('SET', names.meta .. ended.id, meta, 'EX', ttl)
  redis.call('PUBLISH', names.meta .. ended.id, meta)
  local notification = ended.id
  if #ended.result <= INLINE_BYTES then notification = notification .. ' ' .. ended.result end
  for producer in string.gmatch(record[2] or '', '%S+') do
    local list = told[producer] or {}
    list[#list + 1], told[producer] = notification, list
  end
  return now
end

-- Tell each producer of its calls that have ended, all in one message: lines of an id, and its result behind a space.
local function notify(names, told)
  for producer, list in pairs(told) do redis.call('PUBLISH', names.results .. producer, table.concat(list, '\n')) end
end
