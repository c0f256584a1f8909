-- Makes `due` again if another program has deleted or overwritten it. This is put before sweep.lua, after ttl.lua and
-- numbers.lua.
-- `due` has a mark for each agent: the member @<agent>, which is never due. Where it is missing, the agent's open calls are
-- looked for in its lists: those that run, are pending or wait for a limit, and the latest 10,000.

-- Enter an open call. One that is queued or pending is due at its deadline, the lease of any other ends at `otherwise`;
-- so does the wait of one whose deadline cannot be read. `how` says which place that it has there is kept (ZADD).
local function enter(due, ns, id, otherwise, how)
  local record = redis.pcall('HMGET', ns .. 'call:' .. id, 'status', 'deadline', 'token')
  local status = record[1]
  if status == 'queued' or status == 'pending' then
    local is_sound, deadline = pcall(number_in, record[2], otherwise)
    redis.call('ZADD', due, how, is_sound and deadline or otherwise, id)
  elseif status == 'running' or status == 'done' and record[3] then
    redis.call('ZADD', due, how, otherwise, id)
  end
end

-- Put right what another program has written: leases that end later than any of ours, and pending calls that expire later.
local function bound(due, ns, agent, now, lease)
  local running = redis.pcall('ZRANGE', ns .. 'running:' .. agent, 0, -1)
  local expired = redis.pcall('ZRANGE', ns .. 'pending:' .. agent, '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
  for _, ids in ipairs({running, expired}) do
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
      for _, list in ipairs({'running:', 'pending:', 'waiting:', 'calls:'}) do
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
