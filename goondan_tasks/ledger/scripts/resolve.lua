-- Complete a pending call. The first caller decides the outcome and must store it; if it dies, a sweep stores it.
-- If the handler has not returned yet, the outcome is kept until it does (suspend.lua).
-- KEYS  call, due
-- ARGV  id, token, lease (ms), the outcome as JSON, '1' if it decides about an approval, the callback token that the
--       caller has shown ('' = none), the token of the claim from which that was made ('' = the record has the
--       callback token itself)
-- Returns {word, verdict, attempt, queued at (ms), call JSON, when it was suspended (ms), completion}; words:
--   taken    the caller holds the claim: settle it with the verdict completed
--   expired  the caller holds the claim, but it is too late: settle it with the verdict unresolved or unapproved
--   kept     the call still runs
--   closed   it has its final result, or another outcome
--   other    it waits for something else: {word, queued, scheduled, running, completion, approval or
--            event}
--   unknown  there is no such call, its record is damaged, or the callback belongs to another run
-- The same token again (the answer was lost) gets the same answer.
local record = redis.pcall('HMGET', KEYS[1], 'status', 'attempt', 'queuedAt', 'call', 'suspendedAt', 'cancelled',
  'completion', 'approval', 'deadline', 'box', 'callback', 'token')
local status, is_decision = record[1], ARGV[5] == '1'
if not status then return {'unknown'} end
local is_its_run = record[11] == ARGV[6] or (not record[11] and record[12] == ARGV[7])
if ARGV[6] ~= '' and not is_its_run then return {'unknown'} end
if record[10] then return {'other', 'event'} end
local completion = ARGV[2] .. ' ' .. ARGV[4]
if status == 'done' or status == 'dead' or record[6] then return {'closed'} end
if record[7] and record[7] ~= completion then return {'closed'} end
if status ~= 'pending' then
  -- a call that waits for a retry has no run whose completion this could be: its next run would drop it if it fails, too
  local has_no_run = status == 'scheduled' or (status == 'queued' and number_in(record[2], 0) == 0)
  if is_decision or has_no_run then return {'other', status} end
  redis.call('HSET', KEYS[1], 'completion', completion)
  -- so that the callback token is still valid, for a repeated completion, after the run
  if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'callback', ARGV[6]) end
  return {'kept'}
end
if is_decision ~= (record[8] ~= false) then return {'other', record[8] and 'approval' or 'completion'} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local word, verdict = 'taken', 'completed'
if not record[7] and number_in(record[9]) < now then
  word, verdict, completion = 'expired', record[8] and 'unapproved' or 'unresolved', ''
end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[1], 'token', ARGV[2])
if word == 'taken' then redis.call('HSET', KEYS[1], 'completion', completion) end
return {word, verdict, number_in(record[2], 0), number_in(record[3], 0), record[4], record[5], completion}
