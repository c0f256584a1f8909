-- Let a lock go.
-- KEYS  lock
-- ARGV  token of its holder
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0
