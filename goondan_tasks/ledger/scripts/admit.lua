-- Ask whether a call whose message the caller has may be claimed and run now; if not, it enters a wait queue and needs no
-- message. Calls that are claimed on reserve are asked for there.
-- It is harmless to run this twice.
-- KEYS  call
-- ARGV  terms of limits (permits.lua), id, agent, queue, its wake-up key, limits, the message to push when the call is
--       admitted ('' = the caller sends it), TTL of what it holds (s)
-- Returns {word, about, now (ms), {ms until the next check, {id, call JSON, ...}}}, as `ask` and `close` in permits.lua
-- do; one word more is unknown: the call has no record yet. permits.lua is put before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limits = open_limits(ARGV[1], now)
local record = redis.call('HMGET', KEYS[1], 'status', 'queuedAt', 'deadline', 'waiting', 'attempt')
if not record[1] then return {'unknown', '', now, limits.close()} end
-- the claim will decide about it; it takes no permit
if record[1] ~= 'queued' or tonumber(record[3]) <= now then return {'go', '', now, limits.close()} end
local word, about = limits.ask({
  id = ARGV[2], at = tonumber(record[2]), deadline = tonumber(record[3]), limits = ARGV[6], agent = ARGV[3],
  queue = ARGV[4], wake_up = ARGV[5], message = ARGV[7], waits = record[4], ttl = tonumber(ARGV[8]),
  has_run = (tonumber(record[5]) or 0) > 0,
})
if word == 'go' then redis.call('HSET', KEYS[1], 'permits', ARGV[6]) end
return {word, about or '', now, limits.close()}
