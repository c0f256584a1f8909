-- Find the messages whose reservation was not renewed: their worker is dead.
-- KEYS  in-flight index
-- ARGV  seconds a reservation lasts, most to return
-- Returns their tags.
local time = redis.call('TIME')
return redis.call('ZRANGE', KEYS[1], '-inf', time[1] + time[2] / 1000000 - ARGV[1], 'BYSCORE',
  'LIMIT', 0, ARGV[2])
