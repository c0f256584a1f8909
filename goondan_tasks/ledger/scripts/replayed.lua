-- Record that a call was replayed, if its record still exists and is not damaged. The latest replay stays: an operator
-- who read the record before another one had replayed the call may be slower.
-- KEYS  call
-- ARGV  id of the call that runs it again, the number of replays so far
-- Returns 1, or 0 if the record is gone.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 0 end
local known = tonumber(redis.call('HGET', KEYS[1], 'replays') or 0) or 0
if known < tonumber(ARGV[2]) then redis.call('HSET', KEYS[1], 'replayedBy', ARGV[1], 'replays', ARGV[2]) end
return 1
