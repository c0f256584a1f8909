-- Record that a call was replayed, if its record still exists and is not damaged.
-- KEYS  call
-- ARGV  id of the call that runs it again, the number of replays so far
-- Returns 1, or 0 if the record is gone.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then return 0 end
redis.call('HSET', KEYS[1], 'replayedBy', ARGV[1], 'replays', ARGV[2])
return 1
