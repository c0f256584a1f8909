-- Change a session's status.
-- KEYS  session
-- ARGV  status that it must have, new status, reason, token of the caller
-- Returns 1, or 0 if it has another status, or has expired and the new status is not final; 1 again for the same token.
local facts = redis.call('HMGET', KEYS[1], 'status', 'expires', 'by')
if facts[1] == ARGV[2] and facts[3] == ARGV[4] then return 1 end
if facts[1] ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local is_over = tonumber(facts[2]) <= time[1] * 1000 + math.floor(time[2] / 1000)
if is_over and ARGV[2] ~= 'failed' and ARGV[2] ~= 'expired' then return 0 end
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'reason', ARGV[3], 'by', ARGV[4])
return 1
