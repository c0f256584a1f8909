-- Find messages whose reservations were not renewed, because their worker is dead.
-- KEYS  in-flight index
-- ARGV  how long a reservation lasts (s), most to return
-- Returns their tags, the latest first: give_back.lua then restores the original order.
local time = redis.call('TIME')
return redis.call('ZRANGE', KEYS[1], time[1] + time[2] / 1000000 - ARGV[1], '-inf', 'BYSCORE', 'REV',
  'LIMIT', 0, ARGV[2])
