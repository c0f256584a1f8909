-- Grant a call one more run, which begins after a pause; the claim stays where it is.
-- KEYS  call
-- ARGV  token, the pause in ms, and what the next claim returns: 'retries so far, ms when the first run began'
-- Returns 1, or 0 if the error of this run is the result: the pause would end after the call's deadline, or
-- the call is cancelled, or the claim is no longer ours.
local record = redis.call('HMGET', KEYS[1], 'token', 'deadline', 'cancelled')
if record[1] ~= ARGV[1] or record[3] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now + ARGV[2] > tonumber(record[2]) then return 0 end
-- the completion was of the run which has failed, and so is the callback: until the next run there is none;
-- only an idempotent export asks, though the worker that claimed the call may not have known the tool yet
redis.call('HSET', KEYS[1], 'retried', ARGV[3], 'callback', '', 'idempotent', '1')
redis.call('HDEL', KEYS[1], 'completion')
return 1
