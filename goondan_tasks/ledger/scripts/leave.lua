-- Release what a run holds whose record is damaged: the script that ends the run finds nothing there.
-- KEYS  call
-- ARGV  terms of limits (permits.lua), id, token, its limits
-- Nothing is released if the record can be read. permits.lua is put before this.
local record = redis.pcall('HMGET', KEYS[1], 'token')
local time = redis.call('TIME')
local limits = open_limits(ARGV[1], time[1] * 1000 + math.floor(time[2] / 1000))
if record.err then limits.leave({id = ARGV[2], token = ARGV[3], limits = ARGV[4], has_begun = true}) end
limits.close()
