-- Queue the scheduled calls whose time has come. Workers ask this every half second, so it costs next to nothing if there
-- are none.
-- KEYS  due
-- ARGV  namespace, most calls to queue, lease (ms)
-- Returns how many calls were queued. One that cannot be, because another program has written one of its keys, is tried
-- again after a lease. What else is due is left to sweep.lua (waking.lua is put before this).
local MOST_LOOKED_AT = 2000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local left, woken = tonumber(ARGV[2]), 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, MOST_LOOKED_AT)) do
  local record = redis.pcall('HMGET', ARGV[1] .. 'call:' .. id, 'status', 'deadline')
  if record[1] == 'scheduled' and (tonumber(record[2]) or 0) > now then
    if left == 0 then break end
    left = left - 1
    local is_over, is_queued = pcall(wake, ARGV[1], KEYS[1], id, now)
    if is_over and is_queued then
      woken = woken + 1
    else
      redis.call('ZADD', KEYS[1], now + ARGV[3], id)
    end
  end
end
return woken
