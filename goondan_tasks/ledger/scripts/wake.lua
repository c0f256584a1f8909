-- Queue the scheduled calls whose time has come, and admit the calls that wait for a limit which lets them run now. Workers
-- ask this twice a second and at the time of the next one, so it costs next to nothing if there are none.
-- KEYS  due, limits (limit -> when its wait queue must be checked, in ms)
-- ARGV  namespace, most calls to queue, lease (ms), how far ahead to look (ms), how many of those due to pass over, terms of
--       limits (permits.lua)
-- Those passed over are no scheduled calls, as an answer before said.
-- Returns how many scheduled calls were queued; how many to pass over in order to go on, or -1 if none are left; and in how
-- many ms the next one is to be queued, or a wait queue checked, at most as far ahead as it looks. A call that cannot be
-- queued, because another program has written one of its keys, is tried again after a lease. What else is due is left to
-- sweep.lua (waking.lua and permits.lua are put before this).
local MOST_LOOKED_AT = 2000
-- if more others are due, nobody looks again before the time it looks ahead: that would cost more than it is worth
local FEW = 100
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left, woken, ahead, passed = tonumber(ARGV[2]), 0, tonumber(ARGV[4]), tonumber(ARGV[5])

-- The time (ms) of the first check of a wait queue, nothing if no call waits, or another program has overwritten the key.
local function first_check()
  local first = redis.pcall('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
  return not first.err and tonumber(first[2])
end

if passed == 0 and first_check() then
  local limits = open_limits(ARGV[6], now)
  limits.look()
  limits.close()
end
local check_at = first_check()

local function answer(to_pass, ms)
  return {woken, to_pass, check_at and math.max(0, math.min(ms, math.ceil(check_at - now))) or ms}
end

local found = redis.call('ZRANGE', KEYS[1], '-inf', now + ahead, 'BYSCORE', 'LIMIT', passed, MOST_LOOKED_AT, 'WITHSCORES')
for at = 1, #found, 2 do
  local id, due_at = found[at], tonumber(found[at + 1])
  local record = redis.pcall('HMGET', ARGV[1] .. 'call:' .. id, 'status', 'deadline')
  local is_scheduled = record[1] == 'scheduled' and (tonumber(record[2]) or 0) > now
  if due_at > now then
    if is_scheduled and passed <= FEW then return answer(-1, math.ceil(due_at - now)) end
  elseif not is_scheduled then
    passed = passed + 1
  else
    if left == 0 then return answer(passed, 0) end
    left = left - 1
    local is_over, is_queued = pcall(wake, ARGV[1], KEYS[1], id, now)
    if is_over and is_queued then
      woken = woken + 1
    else
      redis.call('ZADD', KEYS[1], now + ARGV[3], id)
    end
  end
end
local is_all = #found < 2 * MOST_LOOKED_AT or tonumber(found[#found]) > now
return answer(is_all and -1 or passed, is_all and ahead or 0)
