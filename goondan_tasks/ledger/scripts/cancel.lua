-- Cancel a call. If no worker runs it, the caller takes it and must end it; if the caller dies first, a sweep
-- ends it. If a worker runs it, it is only marked: its worker ends it, and no other result is accepted.
-- KEYS  call, due
-- ARGV  id, token, lease ms, record TTL s
-- Returns {word, verdict, attempt, queued at (ms), call JSON, when it was suspended (ms, or nothing)}; words:
--   taken     the caller holds the claim: settle it with the verdict cancelled
--   marked    its worker ends it; also for a call that was cancelled before, and one that has ended as cancelled
--   closed    it has its final result
--   unknown   there is no such call, or its record is damaged
-- The same token again (the answer was lost) gets the same answer. scheduled.lua is put before this.
local record = redis.pcall('HMGET', KEYS[1], 'status', 'attempt', 'queuedAt', 'call', 'cancelled', 'suspendedAt',
  'completion', 'token', 'queue')
local status = record[1]
if not status then return {'unknown'} end
local is_again = record[5] and record[8] == ARGV[2]
if not is_again then
  if record[5] then return {'marked'} end
  -- a pending call that was completed counts as closed: its result is about to be stored
  if status == 'done' or status == 'dead' or (status == 'pending' and record[7]) then return {'closed'} end
end
if status == 'running' and not is_again then
  redis.call('HSET', KEYS[1], 'cancelled', '1')
  return {'marked'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- the mark is first: if the rest fails, a scheduled call is woken early by what `due` says, and must not run then
redis.call('HSET', KEYS[1], 'cancelled', '1', 'token', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[1], 'status', 'running')
redis.call('EXPIRE', KEYS[1], ARGV[4])
if record[9] then -- it was scheduled
  local ns = string.sub(KEYS[1], 1, -#ARGV[1] - #'call:' - 1)
  leave_schedule(ns, ARGV[1], record[9])
  forget_schedule(ns, ARGV[1])
end
return {'taken', 'cancelled', number_in(record[2], 0), number_in(record[3], 0), record[4], record[6]}
