-- Mark a claimed call as started, just before its handler runs, and renew its lease.
-- KEYS  call, due
-- ARGV  token, id, lease ms
-- Returns 1, or 0 if the claim is no longer ours, or -1 if the call is cancelled and must not begin.
local record = redis.call('HMGET', KEYS[1], 'token', 'cancelled')
if record[1] ~= ARGV[1] then return 0 end
if record[2] then return -1 end
local time = redis.call('TIME')
-- the mark takes a field away, and the lease changes a score: a Redis without memory refuses to add anything
redis.call('HDEL', KEYS[1], 'notStarted')
redis.call('ZADD', KEYS[2], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3], ARGV[2])
return 1
