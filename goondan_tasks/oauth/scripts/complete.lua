-- Store the grant of a session, and complete the session.
-- KEYS  session, grant, grants
-- ARGV  name, document, ttl (ms)
-- Returns 1, or 0 if the session is not 'exchanging'; 1 again if the same command is sent again.
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'completed' then return is_same(KEYS[2], ARGV[2]) end
if status ~= 'exchanging' then return 0 end
redis.call('HSET', KEYS[1], 'status', 'completed')
put_grant(KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3])
return 1
