-- How a call is accepted; shared by submit.lua and finish.lua; keeping.lua, tracing.lua and mailboxes.lua
-- stand before this.
-- keys  call, due, calls:<agent>, queue, its bell
-- new   id, call (JSON), digest, producer, deadline (ms, '' = none), patience (ms, how long it may wait
--       without a deadline), ttl (s, of the record), message ('' = sent by other means), indexes (of traces, as
--       tracing.lua takes them); of an event: ns, box
-- Returns {'queued', now ms}, {'known', status} or {'conflict', status}.
local function accept_call(keys, new)
  local status = redis.call('HGET', keys[1], 'status')
  if status then
    if redis.call('HGET', keys[1], 'digest') ~= new.digest then return {'conflict', status} end
    if status ~= 'done' and status ~= 'dead' then
      local waiting = redis.call('HGET', keys[1], 'producers') or ''
      if not string.find(' ' .. waiting .. ' ', ' ' .. new.producer .. ' ', 1, true) then
        redis.call('HSET', keys[1], 'producers', waiting .. ' ' .. new.producer)
      end
    end
    return {'known', status}
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- queuedAt is kept to the microsecond: it is the order in which calls wait for a limit
  local deadline = tonumber(new.deadline) or now + new.patience
  local ttl = math.ceil(new.ttl + math.max(0, deadline - now) / 1000)
  redis.call('HSET', keys[1], 'status', 'queued', 'call', new.call, 'digest', new.digest,
    'producers', new.producer, 'queuedAt', time[1] * 1000 + time[2] / 1000, 'deadline', deadline, 'attempt', 0)
  redis.call('EXPIRE', keys[1], ttl)
  redis.call('ZADD', keys[2], deadline, new.id)
  keep_for(keys[2], ttl)
  redis.call('ZADD', keys[3], now, new.id)
  redis.call('ZREMRANGEBYRANK', keys[3], 0, -10001)
  keep_for(keys[3], ttl)
  if new.box then
    redis.call('HSET', keys[1], 'box', new.box)
    put_in_mailbox(new.ns, new.box, new.id, now, ttl)
  end
  index_trace(new.indexes, new.id, now, ttl)
  if new.message ~= '' then
    redis.call('LPUSH', keys[4], new.message)
    if redis.call('LLEN', keys[5]) == 0 then redis.call('LPUSH', keys[5], '1') end
  end
  return {'queued', now}
end
