-- Calls and events whose time is still to come. This is put before the scripts that accept, retry, queue or
-- end them.
--   <ns>scheduled:<agent>  zset id -> not before (ms)
-- Their records have `notBefore`, and the `queue` and the `message` that waking.lua pushes then.

-- Return the key of the list of an agent's scheduled calls, from the name of its queue of calls or events.
local function scheduled_index(ns, queue)
  return ns .. 'scheduled:' .. string.match(queue, '^agent%.([^.]+)')
end

-- Put calls into such a list; `ids` are their times and ids in turn. ttl.lua is put before the scripts that do.
local function join_schedule(index, ids, ttl)
  redis.pcall('ZADD', index, unpack(ids)) -- only a list: if it is damaged, the calls are woken all the same
  keep_for(index, ttl)
end

-- Take a call out of the list; only a list: if it is damaged, the call goes on all the same.
local function leave_schedule(ns, id, queue)
  redis.pcall('ZREM', scheduled_index(ns, queue), id)
end

-- Drop what a record keeps only while its call is scheduled. `queue` is in it until the call has left the list.
local function forget_schedule(ns, id)
  redis.call('HDEL', ns .. 'call:' .. id, 'notBefore', 'queue', 'message')
end
