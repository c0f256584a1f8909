-- Makes `due` again if another program has deleted or overwritten it. This is put before sweep.lua, after ttl.lua and
-- numbers.lua.
-- `due` has a mark for each agent: the member @<agent>, which is never due. Where it is missing, the agent's open calls are
-- looked for in its lists: those that run, are pending, wait for a limit or are scheduled, and the latest 10,000.

-- Enter an open call. One that is queued or pending is due at its deadline, a scheduled one at its time, the lease of any
-- other ends at `otherwise`; so does the wait of one whose deadline or time cannot be read. `how` says which place that it
-- has there is kept (ZADD).
local function enter(due, ns, id, otherwise, how)
  local record = redis.pcall('HMGET', ns .. 'call:' .. id, 'status', 'deadline', 'token', 'notBefore')
  local status = record[1]
  if status == 'queued' or status == 'pending' or status == 'scheduled' then
    local is_sound, moment = pcall(number_in, record[status == 'scheduled' and 4 or 2], otherwise)
    redis.call('ZADD', due, how, is_sound and moment or otherwise, id)
  elseif status == 'running' or status == 'done' and record[3] then
    redis.call('ZADD', due, how, otherwise, id)
  end
end

-- Put right what another program has written: leases that end later than any of ours, and pending and scheduled calls
-- that are due later than they expire or begin.
local function bound(due, ns, agent, now, lease)
  local running = redis.pcall('ZRANGE', ns .. 'running:' .. agent, 0, -1)
  local expired = redis.pcall('ZRANGE', ns .. 'pending:' .. agent, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
  local begun = redis.pcall('ZRANGE', ns .. 'scheduled:' .. agent, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
  for _, ids in ipairs({running, expired, begun}) do
    for _, id in ipairs(ids) do
      local score = tonumber(redis.call('ZSCORE', due, id))
      if not score or score > now + 2 * lease then enter(due, ns, id, now + lease, 'LT') end
    end
  end
end

-- Enter the calls of the first agent without a mark; the others have their turns in later sweeps.
local function rebuild(due, ns, now, lease, ttl)
  local kind = redis.call('TYPE', due).ok
  if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', due) end
  for _, agent in ipairs(redis.pcall('HKEYS', ns .. 'agents')) do
    if not redis.call('ZSCORE', due, '@' .. agent) then
      for _, list in ipairs({'running:', 'pending:', 'waiting:', 'scheduled:', 'calls:'}) do
        for _, id in ipairs(redis.pcall('ZRANGE', ns .. list .. agent, 0, -1)) do
          enter(due, ns, id, now + lease, 'NX')
        end
      end
      redis.call('ZADD', due, 'inf', '@' .. agent)
      keep_for(due, ttl)
      return
    end
    bound(due, ns, agent, now, lease)
  end
end
