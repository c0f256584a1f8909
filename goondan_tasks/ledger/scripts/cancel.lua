-- Cancel a call. One that no worker runs is taken, and the caller must end it; if the caller dies first, the
-- sweep does. One that runs is marked, and its worker ends it: it can have no other result any more.
-- KEYS  call, due
-- ARGV  id, token, lease ms, record TTL s
-- Returns {word, attempt, queued at ms, call JSON, when it was suspended (ms, or nothing)}; words:
--   taken     the caller holds the claim: store that it is cancelled
--   marked    its worker ends it; also a call that was cancelled before, and one that has ended as cancelled
--   closed    it has its final result
--   unknown   there is no such call
-- Asked again with the same token (the answer was lost on its way), it answers the same.
local record = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'queuedAt', 'call', 'cancelled', 'suspendedAt',
  'completion', 'token')
local status = record[1]
if not status then return {'unknown'} end
if not (record[5] and record[8] == ARGV[2]) then
  if record[5] then return {'marked'} end
  -- a pending call that was completed is as good as closed: its result is on its way
  if status == 'done' or status == 'dead' or (status == 'pending' and record[7]) then return {'closed'} end
  redis.call('HSET', KEYS[1], 'cancelled', '1')
  if status == 'running' then return {'marked'} end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'status', 'running', 'token', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return {'taken', number_in(record[2], 0), number_in(record[3], 0), record[4], record[6]}
