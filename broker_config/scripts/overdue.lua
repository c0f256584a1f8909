-- Find the messages whose reservation was not renewed: their worker is dead.
-- KEYS  in-flight index
-- ARGV  seconds a reservation lasts, most to return
-- Returns their tags, those that were reserved last in front: so, one after another, they go back in order.
local time = redis.call('TIME')
return redis.call('ZRANGE', KEYS[1], time[1] + time[2] / 1000000 - ARGV[1], '-inf', 'BYSCORE', 'REV',
  'LIMIT', 0, ARGV[2])
