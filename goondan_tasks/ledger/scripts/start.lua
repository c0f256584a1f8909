-- Mark claimed calls as started, just before their handlers run, and renew their leases.
-- KEYS  due, call...
-- ARGV  lease (ms), then id and token of each call
-- Returns for each call 1, or 0 if the claim was lost, or -1 if the call is cancelled and must not start, or -2 if its
-- record is damaged. An event that has its result before it has begun (keep_leases.lua) counts as lost; its mailbox
-- waits for the next sweep.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = now + ARGV[1]
local answers, leases, started = {}, {}, {}
for at = 2, #KEYS do
  local record = redis.pcall('HMGET', KEYS[at], 'token', 'cancelled', 'status')
  if record.err then
    answers[at - 1] = -2
  elseif record[1] ~= ARGV[2 * at - 1] then
    answers[at - 1] = 0
  elseif record[2] then
    answers[at - 1] = -1
  elseif record[3] == 'done' then
    leases[#leases + 1], leases[#leases + 2] = now, ARGV[2 * at - 2]
    answers[at - 1] = 0
  else
    started[#started + 1] = KEYS[at]
    leases[#leases + 1], leases[#leases + 2] = lease, ARGV[2 * at - 2]
    answers[at - 1] = 1
  end
end
if #leases > 0 then
  redis.call('ZREM', KEYS[1], '') -- a full Redis accepts all that follows a write which needs no memory
  redis.call('ZADD', KEYS[1], 'XX', unpack(leases)) -- before the marks: without a lease there must be none
  for _, key in ipairs(started) do redis.call('HDEL', key, 'notStarted', 'spared', 'renewedAt') end
end
return answers
