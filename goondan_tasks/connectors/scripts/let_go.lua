-- End a Connection's lease; its cursor and its counts stay.
-- KEYS  connection
-- ARGV  token, how its process ended
-- Returns 1, or 0 if another token holds it.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'token', 'until')
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], 'lastError', ARGV[2]) end
return 1
