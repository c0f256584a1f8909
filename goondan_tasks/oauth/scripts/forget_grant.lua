-- Remove a grant.
-- KEYS  grant, grants
-- ARGV  name
-- Returns 1, or 0 if there was none.
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
