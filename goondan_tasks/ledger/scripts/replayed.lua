-- Note that a call was replayed, while its record is there.
-- KEYS  call
-- ARGV  id of the call that runs it again, how many times it was replayed now
-- Returns 1, or 0 if the record is gone.
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'replayedBy', ARGV[1], 'replays', ARGV[2])
return 1
