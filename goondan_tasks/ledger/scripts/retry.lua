-- Grant a failed call another run, after a pause. Until then it is scheduled (scheduled.lua), and nobody holds its claim.
-- KEYS  call, due, running:<agent>
-- ARGV  id, token, the pause (ms), queue, message, what the next claim returns: 'retries so far, ms when the first run
--       began', and the code of the run's error, terms of limits (permits.lua), failure (failures.lua)
-- Returns 1, or 0 if the error of this run must be the result: the pause would end after the call's deadline, the
-- call is cancelled, the claim was lost, or the record is damaged.
-- The same token again (the answer was lost) gets the same answer. ttl.lua, numbers.lua, former.lua, failures.lua,
-- permits.lua, queueing.lua and scheduled.lua are put before this.
local record = redis.pcall('HMGET', KEYS[1], 'token', 'deadline', 'cancelled', 'attempt', 'claimedAt', 'worker', 'permits',
  'released')
if record[8] == ARGV[2] then return 1 end
if record[1] ~= ARGV[2] or record[3] or not record[2] then return 0 end -- without a deadline it has its result
if not can_run_again(record[2], record[4]) then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local starts_at = now + ARGV[3]
if starts_at > tonumber(record[2]) then return 0 end
local limits = record[7] and open_limits(ARGV[8], now)
if limits then -- it asks again before its next run
  limits.leave({id = ARGV[1], token = ARGV[2], limits = record[7], has_begun = true})
end
keep_former(KEYS[1], record[4], record[5], now, ARGV[7], record[6])
keep_failure(KEYS[1], ARGV[9])
-- before the status: a call that is scheduled, and due at the end of its lease, would run too early
redis.call('ZADD', KEYS[2], starts_at, ARGV[1])
give_up_claim(KEYS, ARGV[1], ARGV[2], now, {'status', 'scheduled', 'notBefore', starts_at, 'queue', ARGV[4],
  'message', ARGV[5], 'retried', ARGV[6]})
redis.call('HDEL', KEYS[1], 'completion') -- it belongs to the run that has failed
local ns = string.sub(KEYS[1], 1, -#ARGV[1] - #'call:' - 1)
join_schedule(scheduled_index(ns, ARGV[4]), {starts_at, ARGV[1]}, redis.call('TTL', KEYS[1]))
if limits then limits.close() end
return 1
