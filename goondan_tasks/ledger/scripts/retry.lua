-- Grant a call another run, after a pause. The claim does not change.
-- KEYS  call
-- ARGV  token, the pause (ms), what the next claim returns: 'retries so far, ms when the first run began', and the
--       code of the run's error, id, terms of limits (permits.lua), failure (failures.lua)
-- Returns 1, or 0 if the error of this run must be the result: the pause would end after the call's deadline, the
-- call is cancelled, the claim was lost, or the record is damaged.
local record = redis.pcall('HMGET', KEYS[1], 'token', 'deadline', 'cancelled', 'attempt', 'claimedAt', 'worker', 'permits')
if record[1] ~= ARGV[1] or record[3] or not record[2] then return 0 end -- without a deadline it has its result
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now + ARGV[2] > tonumber(record[2]) then return 0 end
-- a completion or callback belongs to the run that has failed; until the next run there is none. Only idempotent
-- exports are retried, but a worker that did not know the tool yet claimed the call as not idempotent. A token in
-- `paused` is that of a claim whose run has ended.
redis.call('HSET', KEYS[1], 'retried', ARGV[3], 'callback', '', 'idempotent', '1', 'paused', ARGV[1])
redis.call('HDEL', KEYS[1], 'completion')
keep_former(KEYS[1], record[4], record[5], now, ARGV[4], record[6])
if record[7] then -- it asks again before its next run
  local limits = open_limits(ARGV[6], now)
  limits.leave({id = ARGV[5], token = ARGV[1], limits = record[7], has_begun = true})
  limits.close()
end
keep_failure(KEYS[1], ARGV[7])
return 1
