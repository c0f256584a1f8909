-- Ask whether a call may be claimed and run now; if not, it enters a wait queue and needs no message.
-- It is harmless to run this twice.
-- ARGV  (after those of permits.lua) id, agent, queue, its wake-up key, limits,
--       the message to push when the call is admitted ('' = the caller sends it)
-- Words: go        claim it; leave.lua releases what it holds since `now`
--        wait      it is in a wait queue
--        late      the rate limit `about` would admit it only after its deadline
--        share     the call `about`, with the same idempotencyKey, has a result for both
--        conflict  the call `about` has the same idempotencyKey and other arguments
--        unknown   it has no record yet
local id, agent, queue, wake_up = ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local limits = limits_of(ARGV[14])
local record = redis.call('HMGET', calls .. id, 'status', 'queuedAt', 'deadline', 'attempt')
if not record[1] then return answer('unknown') end
-- the claim will decide about it; it takes no permit
if record[1] ~= 'queued' or tonumber(record[3]) <= now then return answer('go') end
local at = tonumber(record[2])
take_out(id)

local word, limit, owner = try(limits, id, at, true)
if word == 'go' then
  redis.call('HDEL', calls .. id, 'waiting')
  return answer('go')
end

-- it may have been admitted before, and must wait again: release what it holds. A call that has run keeps its key: the
-- run may have taken effect, and another call with the key would repeat that.
local freed, has_run = {}, (tonumber(record[4]) or 0) > 0
for _, held in ipairs(limits) do
  if held.kind == 'key' then
    if not has_run and redis.call('HGET', states .. held.name, 'owner') == id then
      redis.call('HDEL', states .. held.name, 'owner')
      freed[#freed + 1] = held.name
    end
  elseif redis.call('ZREM', holders .. held.name, id) == 1 then
    freed[#freed + 1] = held.name
  end
end

if word == 'wait' then
  redis.call('HSET', states .. limit.name, 'most', limit.most, 'period', limit.period)
  keep(states .. limit.name, id)
  redis.call('HSET', waiters .. id, 'at', at, 'agent', agent, 'queue', queue,
    'bell', wake_up, 'gates', ARGV[14], 'message', ARGV[15])
  put_in_wait_queue(limit.name, id, at, agent)
  if limit.kind == 'rate' then
    local rank = redis.call('ZRANK', wait_queues .. limit.name, id)
    if rate_time(limit, rank) > tonumber(record[3]) then
      take_out(id)
      word, owner = 'late', limit.name
    end
  end
  owner = owner or limit.name
  admit_waiting(limit.name)
end
for _, name in ipairs(freed) do admit_waiting(name) end
return answer(word, owner)
