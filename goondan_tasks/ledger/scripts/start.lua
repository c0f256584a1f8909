-- Mark claimed calls as started, just before their handlers run, and renew their leases.
-- KEYS  due, call...
-- ARGV  lease (ms), terms of limits (permits.lua), then for each call: id, token, the limit of its idempotencyKey ('' = none)
-- Returns for each call 1, or 0 if the claim was lost, or -1 if the call is cancelled and must not start, or -2 if its
-- record is damaged, or -3 if another call has its key: then admit.lua says what follows. An event that has its result
-- before it has begun (keep_leases.lua) counts as lost; its mailbox waits for the next sweep.
-- permits.lua is put before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = now + ARGV[1]
local limits

-- Let a call hold its key, and note that in its record.
local function hold_key(key, id, limit)
  limits = limits or open_limits(ARGV[2], now)
  local record = redis.call('HMGET', key, 'queuedAt', 'permits')
  local is_sound, is_held = pcall(limits.hold_key, id, tonumber(record[1]), limit)
  if not (is_sound and is_held) then return false end
  local permits = record[2] or ''
  if string.sub(permits, 1, 4) ~= 'key ' then redis.call('HSET', key, 'permits', limit .. '\n' .. permits) end
  return true
end

local answers, leases, started = {}, {}, {}
for at = 2, #KEYS do
  local id, token, limit = ARGV[3 * at - 3], ARGV[3 * at - 2], ARGV[3 * at - 1]
  local record = redis.pcall('HMGET', KEYS[at], 'token', 'cancelled', 'status')
  if record.err then
    answers[at - 1] = -2
  elseif record[1] ~= token then
    answers[at - 1] = 0
  elseif record[2] then
    answers[at - 1] = -1
  elseif record[3] == 'done' then
    leases[#leases + 1], leases[#leases + 2] = now, id
    answers[at - 1] = 0
  elseif limit ~= '' and not hold_key(KEYS[at], id, limit) then
    answers[at - 1] = -3
  else
    started[#started + 1] = KEYS[at]
    leases[#leases + 1], leases[#leases + 2] = lease, id
    answers[at - 1] = 1
  end
end
if #leases > 0 then
  redis.call('ZREM', KEYS[1], '') -- a full Redis accepts all that follows a write which needs no memory
  redis.call('ZADD', KEYS[1], 'XX', unpack(leases)) -- before the marks: without a lease there must be none
  for _, key in ipairs(started) do redis.call('HDEL', key, 'notStarted', 'spared', 'renewedAt') end
end
return answers
