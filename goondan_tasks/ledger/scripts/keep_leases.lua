-- Keep the leases of a process that runs, but whose interpreter is held, so that it can renew nothing.
-- Only runs that have started are kept: the others may begin elsewhere when their leases end. A run that is past its
-- time limit, or cancelled, is due at once, since the process can neither interrupt nor answer it. An event that has
-- its result is kept until its handler ends.
-- KEYS  due
-- ARGV  lease (ms), record TTL (s), namespace, the id of the process, with which its tokens begin, the time limit of
--       a run for which neither export nor call sets one (ms), for how long the process could do nothing (ms)
-- Returns the number of leases that were renewed. ttl.lua and mailboxes.lua are put before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ns, process, held = ARGV[3], ARGV[4], tonumber(ARGV[6])

-- Return how long a run may last, as ContextFactory.limit_seconds in workers/contexts.py has it.
local function limit_of(of_export, call)
  local is_sound, decoded = pcall(cjson.decode, call)
  local of_call = is_sound and type(decoded) == 'table' and tonumber(decoded.timeoutSeconds)
  local limit = tonumber(of_export) or 0
  if not of_call then return limit > 0 and limit or tonumber(ARGV[5]) end
  return limit > 0 and math.min(limit, of_call * 1000) or of_call * 1000
end

local count = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now + ARGV[1], 'BYSCORE')) do
  local key = ns .. 'call:' .. id
  local token = redis.pcall('HGET', key, 'token') -- another program may have written the key
  if type(token) == 'string' and string.sub(token, 1, #process) == process then
    local record = redis.call('HMGET', key, 'notStarted', 'cancelled', 'limit', 'call', 'box', 'status')
    if record[1] then
      -- its lease ends by itself
    elseif record[6] ~= 'done' and (record[2] or held >= limit_of(record[3], record[4])) then
      redis.call('ZADD', KEYS[1], now, id)
      redis.call('HSET', key, 'overran', token, 'spared', token)
    else
      if record[5] then keep_mailbox(ns, record[5], ARGV[2]) end
      redis.call('ZADD', KEYS[1], now + ARGV[1], id)
      redis.call('HDEL', key, 'spared', 'renewedAt')
      redis.call('EXPIRE', key, ARGV[2])
      count = count + 1
    end
  end
end
keep_for(KEYS[1], ARGV[2])
return count
