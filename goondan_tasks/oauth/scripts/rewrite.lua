-- Write a record's document anew.
-- KEYS  grant or session
-- ARGV  document that stands there, document that takes its place
-- Returns 1, or 0 if another one stands there by now. Sent again it says 1 again.
local standing = redis.call('HGET', KEYS[1], 'document')
if standing == ARGV[2] then return 1 end
if standing ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'document', ARGV[2])
return 1
