-- Mark a claimed call as started, just before its handler runs.
-- KEYS  call
-- ARGV  token
-- Returns the time in ms, or 0 if the claim is no longer ours.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'started', now)
return now
