-- Replace a grant of a given generation.
-- KEYS  grant, grants
-- ARGV  the generation that is replaced (0 for none), name, document, ttl (ms)
-- Returns 1, or 0 if another generation is stored; 1 again if sent again, since no two documents are equal.
local stored = tonumber(redis.call('HGET', KEYS[1], 'generation') or '0')
if stored ~= tonumber(ARGV[1]) then return is_same(KEYS[1], ARGV[3]) end
put_grant(KEYS[1], KEYS[2], ARGV[2], ARGV[3], ARGV[4])
return 1
