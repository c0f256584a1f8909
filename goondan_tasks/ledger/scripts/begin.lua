-- Count the start of a run for its rates, at once instead of at its end: it may take long.
-- KEYS  call
-- ARGV  terms of limits (permits.lua), id, token, its limits
-- The same token again counts no second start. permits.lua is put before this.
local record = redis.pcall('HMGET', KEYS[1], 'token')
local time = redis.call('TIME')
local limits = open_limits(ARGV[1], time[1] * 1000 + math.floor(time[2] / 1000))
limits.begin(ARGV[2], ARGV[3], ARGV[4], not record.err and record[1] ~= ARGV[3])
limits.close()
