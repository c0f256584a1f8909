-- Ask whether a call whose message or claim the caller has may run now; if not, it enters a wait queue and needs no
-- message, and is queued again if it was claimed. Calls that are claimed on reserve are asked for there, except for their
-- idempotencyKey: start.lua takes that, and leaves the calls to this whose key is not free.
-- It is harmless to run this twice.
-- KEYS  call, due, running:<agent>
-- ARGV  terms of limits (permits.lua), id, agent, queue, its wake-up key, limits, the message to push when the call is
--       admitted, TTL of what it holds (s), token of the caller's claim ('' = none), '1' if the caller's call is that of
--       the record
-- Returns {word, about, now (ms)}, as `ask` in permits.lua does; two words more are unknown: the call has no record yet;
-- approved: it is the record's call that runs, which is told; ask again with that, since its arguments may be others.
-- permits.lua and queueing.lua are put before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limits = open_limits(ARGV[1], now)
local record = redis.call('HMGET', KEYS[1], 'status', 'queuedAt', 'deadline', 'waiting', 'attempt', 'token',
  'cancelled', 'approved', 'call')
if not record[1] then return {'unknown', '', now} end
local is_claimed = record[1] == 'running' and record[6] == ARGV[9]
-- the claim, or the mark, will decide about it; it takes no permit
local is_over = record[1] ~= 'queued' or tonumber(record[3]) < now -- as claiming.lua says
if is_claimed and record[7] or not is_claimed and is_over then return {'go', '', now} end
if record[8] and record[9] and ARGV[10] ~= '1' then return {'approved', record[9], now} end
-- The caller's message is a second one. Out of its wait queue, the call would depend on it alone: it may be in flight no more.
local wait_queue = record[4] and not is_claimed and limits.wait_queue_of(ARGV[2])
if wait_queue then return {'wait', wait_queue, now} end
-- the run that it is claimed for has not begun
local runs = (tonumber(record[5]) or 0) - (is_claimed and 1 or 0)
-- calls that are not queued do not wait
local function give_up_claim()
  queue_again(KEYS, ARGV[2], ARGV[9], now, 'attempt', runs)
end
local word, about = limits.ask({
  id = ARGV[2], at = tonumber(record[2]), deadline = tonumber(record[3]), limits = ARGV[6], agent = ARGV[3],
  queue = ARGV[4], wake_up = ARGV[5], message = ARGV[7], waits = record[4], ttl = tonumber(ARGV[8]),
  has_run = runs > 0, on_wait = is_claimed and give_up_claim,
})
if word == 'go' then redis.call('HSET', KEYS[1], 'permits', ARGV[6]) end
limits.close()
return {word, about or '', now}
