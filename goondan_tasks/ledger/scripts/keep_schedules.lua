-- Write schedules of one owner: those of a bundle replace all that it had before.
-- KEYS  schedules of the owner, owners
-- ARGV  namespace, owner ('' = schedules made at run time), since when (ms) the caller has them ('' = the owner keeps its
--       others), lifetime beyond the next slot (s), then seven for each schedule: full name, definition, digest, digest of
--       its times, overlap, its next slot and when that is due (ms, '' = never)
-- Returns how many were written, or -1 if the owner has newer ones. A paused schedule stays paused, and one whose times
-- are the same keeps its next slot, unless that is damaged. ttl.lua and slots.lua are put before this.
local time = redis.call('TIME')
local now, ns, owner, since = time[1] * 1000 + math.floor(time[2] / 1000), ARGV[1], ARGV[2], tonumber(ARGV[3])
local is_bundle = since ~= nil
if is_bundle then
  local known = tonumber(redis.call('HGET', KEYS[2], owner) or '')
  if not known and #ARGV < 5 then return 0 end -- a bundle without schedules leaves no trace
  if known and known > since then return -1 end
end
local wanted, written, longest = {}, 0, tonumber(ARGV[4])
for at = 5, #ARGV, 7 do
  local name, slot, due = ARGV[at], ARGV[at + 5], ARGV[at + 6]
  local key = ns .. 'schedule:' .. name
  local state = redis.call('HMGET', key, 'digest', 'timing', 'next', 'at', 'paused')
  if state[2] == ARGV[at + 3] and is_slot(state[3], state[4]) then slot, due = state[3], state[4] end
  if state[5] then slot, due = '', '' end
  local ttl = math.ceil(ARGV[4] + math.max(0, (tonumber(due) or now + 366 * 86400 * 1000) - now) / 1000)
  if ttl > longest then longest = ttl end
  redis.call('HSET', key, 'definition', ARGV[at + 1], 'digest', ARGV[at + 2], 'timing', ARGV[at + 3],
    'overlap', ARGV[at + 4], 'next', slot, 'at', due)
  if not state[1] then redis.call('HSET', key, 'since', now) end
  keep_for(key, ttl)
  redis.call('ZADD', KEYS[1], due == '' and 'inf' or due, name)
  if state[1] ~= ARGV[at + 2] then written = written + 1 end
  wanted[name] = true
end
if is_bundle then
  for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if not wanted[name] then
      redis.call('ZREM', KEYS[1], name)
      redis.call('DEL', ns .. 'schedule:' .. name, ns .. 'schedule-runs:' .. name)
    end
  end
end
keep_for(KEYS[1], longest)
redis.call('HSET', KEYS[2], owner, since or 0)
keep_for(KEYS[2], longest)
return written
