-- Check the wait queues that are due, and admit the calls that no longer have to wait.
-- KEYS  limits (limit -> when its wait queue must be checked, in ms)
-- ARGV  terms of limits (permits.lua)
-- Returns ms until the next check, as `close` in permits.lua, which is put before this.
local time = redis.call('TIME')
local limits = open_limits(ARGV[1], time[1] * 1000 + math.floor(time[2] / 1000))
limits.look()
return limits.close()
