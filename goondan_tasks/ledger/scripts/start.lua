-- Mark a claimed call as started, just before its handler runs.
-- KEYS  call
-- ARGV  token
-- Returns 1, or 0 if the claim is no longer ours.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
-- the mark takes a field away, because a Redis without memory refuses to add one
redis.call('HDEL', KEYS[1], 'notStarted')
return 1
