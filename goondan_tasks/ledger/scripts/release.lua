-- Release a claim, the caller's own or that of a dead worker: the call is queued again, with its message.
-- KEYS  call, due, running:<agent>, queue, its wake-up key
-- ARGV  id, token, message ('' = its queue still has it), '1' if its worker has died, '1' if
--       the call counts as not started in any case, terms of limits (permits.lua), failure (failures.lua)
-- Returns 1, or 0 if the claim was lost, the record is damaged or the call must not be run again, such as an event that
-- has its result.
-- It keeps its permits for the next claim, for a lease; a run that has started counts for its rates.
-- ttl.lua, numbers.lua, former.lua, failures.lua, permits.lua and queueing.lua are put before this.
-- The same token again (the answer was lost) gets the same answer while the call is queued.
local record = redis.pcall('HMGET', KEYS[1], 'token', 'notStarted', 'idempotent', 'cancelled', 'released', 'status',
  'attempt', 'claimedAt', 'worker', 'permits', 'deaths', 'deadline')
if record[5] == ARGV[2] and record[6] == 'queued' then return 1 end
if record[1] ~= ARGV[2] or record[4] or record[6] ~= 'running' then return 0 end
if not can_run_again(record[12], record[7]) then return 0 end
if ARGV[5] == '1' then record[2] = '1' end
if not record[2] and record[3] ~= '1' then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- while the record has the token: asked again, this counts the start again if it was broken off
if not record[2] and record[10] then pcall(open_limits(ARGV[6], now).begin, ARGV[1], ARGV[2], record[10]) end
-- The message comes first: a claim drops one of a call that is not queued, but a queued call without it would wait
-- until its deadline. If this is broken off before the deadline is written, a sweep writes it.
if ARGV[3] ~= '' then
  -- it goes to the front of the queue, or to the end if it may have killed its worker
  redis.call(ARGV[4] == '1' and 'LPUSH' or 'RPUSH', KEYS[4], ARGV[3])
  if redis.pcall('LLEN', KEYS[5]) == 0 then redis.call('LPUSH', KEYS[5], '1') end
end
local count, number = 'attempt', (tonumber(record[7]) or 0) - (record[2] and 1 or 0)
if ARGV[4] == '1' then
  -- a call that had not started may have waited behind the one that killed the worker: it counts a fifth
  count, number = 'deaths', (tonumber(record[11]) or 0) + (record[2] and 1 or 5)
end
queue_again(KEYS, ARGV[1], ARGV[2], now, count, number)
if not record[2] then keep_former(KEYS[1], record[7], record[8], now, 'released', record[9]) end
keep_failure(KEYS[1], ARGV[7])
return 1
