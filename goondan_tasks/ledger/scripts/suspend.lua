-- Make a call pending: its handler has only begun the work, or it must be approved before it is run.
-- KEYS  call, due, running:<agent>, celery-task-meta-<id>, pending:<agent>, approvals:<agent>
-- ARGV  id, token, Celery's record of the interim result, when the call expires (ms), record TTL (s),
--       results channel prefix, the notification, its callback token ('' = none), handle,
--       '1' if it waits for an approval, the interim result as JSON, terms of limits (permits.lua)
-- Returns the time (ms); 0 if the claim was lost; -1 if the call is cancelled; or the completion that came before the
-- handler returned: then the caller keeps the claim and must store it. It holds no permits
-- meanwhile, but the calls with its idempotencyKey wait for it. One that must be approved gives up its key, too: it takes
-- that of the arguments which were approved. ttl.lua and permits.lua are put before this.
local record = redis.call('HMGET', KEYS[1], 'token', 'producers', 'cancelled', 'completion', 'celery', 'permits',
  'notStarted', 'attempt')
if record[1] ~= ARGV[2] then return 0 end
if record[3] then return -1 end
local is_approval = ARGV[10] == '1'
if record[4] and not is_approval then return record[4] end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl = math.ceil(ARGV[5] + math.max(0, ARGV[4] - now) / 1000)
local limits = record[6] and open_limits(ARGV[12], now)
if limits then
  limits.leave({id = ARGV[1], token = ARGV[2], limits = record[6], has_begun = not record[7], pending_ttl = ttl,
    gives_up_key = is_approval and record[8] == '1'})
end
-- what it waits for comes with the status: a call that is only pending could never be approved
local fields = {'status', 'pending', 'suspendedAt', now, 'deadline', ARGV[4], 'handle', ARGV[9], 'result', ARGV[11]}
if is_approval then
  redis.call('HDEL', KEYS[1], 'completion', 'callback') -- nothing has run yet, so there is nothing to complete
  fields[11], fields[12] = 'approval', '1'
elseif ARGV[8] ~= '' then
  fields[11], fields[12] = 'callback', ARGV[8]
end
redis.call('HSET', KEYS[1], unpack(fields))
-- what does not reach `due` is written there by a sweep, at the end of the lease or when it makes `due` again
redis.pcall('ZADD', KEYS[2], ARGV[4], ARGV[1])
keep_for(KEYS[2], ttl)
redis.call('HDEL', KEYS[1], 'token', 'verdict', 'notStarted', 'maxAttempts', 'deaths', 'retried')
-- who approves a call sees whether it may run again
if not is_approval then redis.call('HDEL', KEYS[1], 'idempotent') end
redis.call('EXPIRE', KEYS[1], ttl)
redis.pcall('ZREM', KEYS[3], ARGV[1]) -- these are only lists: if one is damaged, the call is pending all the same
local indexes = {KEYS[5]}
if is_approval then
  redis.call('HINCRBY', KEYS[1], 'attempt', -1)
  indexes[2] = KEYS[6]
end
for _, index in ipairs(indexes) do
  redis.pcall('ZADD', index, ARGV[4], ARGV[1])
  redis.pcall('ZREMRANGEBYSCORE', index, '-inf', now - ARGV[5] * 1000)
  keep_for(index, ttl)
end
if record[5] then -- submitted by plain Celery
  redis.call('SET', KEYS[4], ARGV[3], 'EX', ttl)
  redis.call('PUBLISH', KEYS[4], ARGV[3])
end
for producer in string.gmatch(record[2] or '', '%S+') do
  redis.call('PUBLISH', ARGV[6] .. producer, ARGV[7])
end
if limits then limits.close() end
return now
