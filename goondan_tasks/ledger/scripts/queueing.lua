-- Takes claims from calls that will be run again. Shared by release.lua, admit.lua and retry.lua; ttl.lua and
-- numbers.lua are put before this.

-- Whether a call can be run again: no script claims or wakes one of which these fields cannot be read, so the end of the
-- run must be its result.
local function can_run_again(deadline, attempt)
  return pcall(number_in, deadline) and pcall(number_in, attempt, 0)
end

-- Take a claim from a call.
-- keys    call, due, running:<agent>
-- fields  what is written with that, its status among it; its place in `due` is the caller's affair
local function give_up_claim(keys, id, token, now, fields)
  redis.call('HSET', keys[1], 'released', token, 'releasedAt', now, unpack(fields))
  redis.call('HDEL', keys[1], 'token', 'verdict', 'worker', 'notStarted', 'callback')
  -- the lease has shortened the record's lifetime; without a record, the message is not run
  local deadline = redis.call('HGET', keys[1], 'deadline')
  keep_for(keys[1], math.max(0, math.ceil((deadline - now) / 1000)))
  redis.pcall('ZREM', keys[3], id) -- only a list: if it is damaged, the claim is gone all the same
end

-- Take a claim from a call, which is queued from now on; its message is the caller's affair, too.
local function queue_again(keys, id, token, now, count, number)
  give_up_claim(keys, id, token, now, {'status', 'queued', count, number})
  redis.call('ZADD', keys[2], redis.call('HGET', keys[1], 'deadline'), id)
end
