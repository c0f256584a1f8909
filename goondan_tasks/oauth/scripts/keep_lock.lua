-- Keep a lock.
-- KEYS  lock
-- ARGV  token of its holder, for how long (ms)
-- Returns 1, or 0 if it is not the holder's any more.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
