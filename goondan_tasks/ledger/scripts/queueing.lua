-- Queues claimed calls again. Shared by release.lua and admit.lua; ttl.lua is put before this.

-- Take a claim from a call, which is queued from now on; its message is the caller's affair.
-- keys  call, due, running:<agent>
local function queue_again(keys, id, token, now, count, number)
  local deadline = redis.call('HGET', keys[1], 'deadline')
  redis.call('HSET', keys[1], count, number, 'status', 'queued', 'released', token, 'releasedAt', now)
  redis.call('ZADD', keys[2], deadline, id)
  redis.call('HDEL', keys[1], 'token', 'verdict', 'worker', 'notStarted', 'callback')
  -- the lease has shortened the record's lifetime; without a record, the message is not run
  keep_for(keys[1], math.max(0, math.ceil((deadline - now) / 1000)))
  redis.pcall('ZREM', keys[3], id) -- only a list: if it is damaged, the call is queued all the same
end
