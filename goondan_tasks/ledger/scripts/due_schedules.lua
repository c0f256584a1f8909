-- Find the schedules that are due, and say when the next one will be.
-- KEYS  schedules of an owner...
-- ARGV  namespace, most schedules to return
-- Returns {now (ms), when the first of the others is due (ms, or nothing), {definition, next slot, the ids of its open
-- runs...} of each that is due}. The slot is -1, also in its record, if another program has damaged it: the slots that have
-- passed are not known. One whose key is gone or damaged is taken out. running.lua and slots.lua are put before this.
local time = redis.call('TIME')
local now, ns = time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1]
local found, following = {}, false
for _, index in ipairs(KEYS) do
  local names = redis.pcall('ZRANGE', index, '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[2])
  for _, name in ipairs(names) do
    local key = ns .. 'schedule:' .. name
    local state = redis.pcall('HMGET', key, 'definition', 'next', 'at', 'paused')
    if state[1] and state[4] then state[2], state[3] = '', '' end
    local is_sound = is_slot(state[2], state[3])
    if state[1] and is_sound and (tonumber(state[3]) or now + 1) > now then
      redis.call('ZADD', index, state[3] == '' and 'inf' or state[3], name) -- the script that fired it was broken off
    elseif state[1] then
      if not is_sound then
        state[2] = '-1'
        redis.call('HSET', key, 'next', state[2])
      end
      local runs = ns .. 'schedule-runs:' .. name
      note_ended(key, runs, ns)
      found[#found + 1] = {state[1], state[2], unpack(redis.pcall('ZRANGE', runs, 0, MOST_LOOKED_AT - 1))}
    else
      redis.call('ZREM', index, name)
    end
  end
  local later = redis.pcall('ZRANGE', index, '(' .. now, 'inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local at = tonumber(later[2] or '')
  if at and at < math.huge and (not following or at < following) then following = at end
end
return {now, following, unpack(found)}
