-- Store the progress of a run whose claim is still held.
-- KEYS  call
-- ARGV  token, the progress as JSON
-- Returns 1, or 0 if the claim was lost or the record is damaged.
if redis.pcall('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'progress', string.format('%d ', now) .. ARGV[2])
return 1
