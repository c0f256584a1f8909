-- Claim the next event of an agent whose events are not handled by workers.
-- KEYS  due, running:<agent>, calls:<agent>, the agent's queue of events
-- ARGV  token, worker, lease (ms), record TTL (s), '1' if idempotent, max attempts, its export's time
--       limit (ms, 0 = none), namespace, agent, mailbox ('' = any of the agent's)
-- Returns {id, call JSON, what claim_call returns}, or nothing if no event waits.
-- The same token again (the answer was lost) gets the same answer.
--   <ns>fetched:<token>  the id of the event that this token got
local token, ns = ARGV[1], ARGV[8]
local OURS = '^{"headers":{"lang":"py","task":"[^"]+","id":"([^"\\]+)"'
local MESSAGES_PER_FETCH = 3 -- each event adds fewer, so the queue does not grow

-- Remove messages that are not needed from the queue: workers, which would take them and park the events, may be
-- missing. Other messages go to the end of the queue; only a worker can record an event from plain Celery.
local function take_messages()
  for _ = 1, MESSAGES_PER_FETCH do
    local message = redis.pcall('RPOP', KEYS[4])
    if type(message) ~= 'string' then return end -- it is empty, or damaged
    local id = string.match(message, OURS)
    local status = id and redis.pcall('HGET', ns .. 'call:' .. id, 'status')
    if not id or status == 'queued' then
      redis.call('LPUSH', KEYS[4], message)
    elseif status == 'running' or status == 'pending' then
      redis.call('HSET', ns .. 'call:' .. id, 'parked', '1', 'message', message)
    end
  end
end

local terms = {worker = ARGV[2], lease = ARGV[3], ttl = ARGV[4], idempotent = ARGV[5], most = ARGV[6], limit = ARGV[7]}
local function claimed(id)
  local key = ns .. 'call:' .. id
  local claim = claim_alone({key, KEYS[1], KEYS[2], KEYS[3]}, id, token, terms)
  return {id, redis.call('HGET', key, 'call'), claim}
end

local fetched = ns .. 'fetched:' .. token
local before = redis.call('GET', fetched)
if before then return claimed(before) end
local waiting, boxes = ns .. 'mailboxes:' .. ARGV[9], {ARGV[10]}
if ARGV[10] == '' then boxes = redis.call('ZRANGE', waiting, 0, -1) end
for _, box in ipairs(boxes) do
  local id, status = first_in_mailbox(ns, box)
  if id and status == 'queued' then
    local answer = claimed(id)
    take_messages()
    redis.call('ZADD', waiting, 'XX', answer[3][4], box) -- moves the box behind the others of the agent
    redis.call('SET', fetched, id, 'PX', ARGV[3])
    return answer
  end
end
take_messages()
return false
