-- Renew reservations; one that was given back in the meantime is not restored.
-- KEYS  in-flight index
-- ARGV  the tags
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
for i = 1, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now, ARGV[i]) end
return 1
