-- Find messages whose reservations were not renewed, because their worker is dead. One of the time to come is another
-- program's: it counts, too.
-- KEYS  in-flight index
-- ARGV  how long a reservation lasts (s), most to return
-- Returns their tags, the latest first: give_back.lua then restores the original order.
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local tags = {}
for _, range in ipairs({{'+inf', now + ARGV[1]}, {now - ARGV[1], '-inf'}}) do
  local found = redis.call('ZRANGE', KEYS[1], range[1], range[2], 'BYSCORE', 'REV', 'LIMIT', 0, ARGV[2] - #tags)
  for _, tag in ipairs(found) do tags[#tags + 1] = tag end
end
return tags
