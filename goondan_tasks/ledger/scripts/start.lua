-- Mark a claimed call as started, just before its handler runs.
-- KEYS  call
-- ARGV  token
-- Returns 1, or 0 if the claim is no longer ours, or -1 if the call is cancelled and must not begin.
local record = redis.call('HMGET', KEYS[1], 'token', 'cancelled')
if record[1] ~= ARGV[1] then return 0 end
if record[2] then return -1 end
-- the mark takes a field away, because a Redis without memory refuses to add one
redis.call('HDEL', KEYS[1], 'notStarted')
return 1
