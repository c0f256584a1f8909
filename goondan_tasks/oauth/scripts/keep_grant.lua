-- Keep a grant that is used.
-- KEYS  grant, grants
-- ARGV  ttl (ms)
if redis.call('EXISTS', KEYS[1]) == 1 then keep(KEYS[1], KEYS[2], ARGV[1]) end
return 0
