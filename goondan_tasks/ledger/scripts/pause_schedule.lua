-- Pause a schedule, or let it go on.
-- KEYS  schedule, schedules of its owner
-- ARGV  full name, who pauses it, and why (JSON, '' = it goes on), its next slot and when that is due (ms, '' = never),
--       lifetime beyond the next slot (s)
-- Returns 1, 0 if it was so before, or -1 if there is no such schedule. ttl.lua is put before this.
if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end
local was_paused = redis.call('HEXISTS', KEYS[1], 'paused') == 1
local slot, due = ARGV[3], ARGV[4]
if ARGV[2] == '' then
  if not was_paused then return 0 end
  redis.call('ZADD', KEYS[2], due == '' and 'inf' or due, ARGV[1])
  redis.call('HDEL', KEYS[1], 'paused')
else
  slot, due = '', ''
  redis.call('HSET', KEYS[1], 'paused', ARGV[2])
  redis.call('ZADD', KEYS[2], 'inf', ARGV[1])
end
redis.call('HSET', KEYS[1], 'next', slot, 'at', due)
local time = redis.call('TIME')
local rest = due ~= '' and due / 1000 - time[1] or 366 * 86400
keep_for(KEYS[1], math.ceil(ARGV[5] + rest))
keep_for(KEYS[2], math.ceil(ARGV[5] + rest))
return was_paused == (ARGV[2] ~= '') and 0 or 1
