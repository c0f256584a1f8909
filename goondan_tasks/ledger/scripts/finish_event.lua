-- Store what an agent made of an event, send the answer to whoever asked, and let the next event come.
-- A tool call that was pending ends here too: its answer is the event which tells its agent of that.
-- While the handler of an event still runs whose result is known already, its worker keeps the claim, and the
-- event its place in the mailbox: the next one comes when the same claim is finished again, by its worker, or
-- by a sweep after its death.
-- KEYS  those of finishing.lua, the event's queue and bell; for an answer, the asker's queue and bell, and if
--       the asker is to handle it: call, calls:<agent> of the answer
-- ARGV  those of finishing.lua, namespace, lease ms if the handler still runs (else ''), a name of this very
--       request; for an answer, its message ('' = sent by other means), and if the asker is to handle it: id, call
--       JSON, digest, queue timeout ms, record TTL s, mailbox, indexes of traces
-- Returns as finish_call does, or {what it returns, id, call JSON}: the next event, to be sent by other means.
-- The same request again (the answer was lost on its way) gets the same answer: what is to be sent by other means
-- has not been sent.
-- mailboxes.lua, accepting.lua and finishing.lua stand before this.
local ns, still_runs = ARGV[11], ARGV[12] ~= ''
local record = redis.call('HMGET', KEYS[1], 'box', 'suspendedAt', 'status', 'token', 'finishedAt', 'ender')
local box = record[1]
local function let_next_come(answer)
  local following, call = take_out_of_mailbox(ns, box, ARGV[1], KEYS[5], KEYS[6])
  return following and {answer, following, call} or answer
end
local LATE = ARGV[13] .. ' late'
if record[6] == ARGV[13] or record[6] == LATE then
  local answer, following, status = record[6] == LATE and 0 or tonumber(record[5])
  if box then following, status = first_in_mailbox(ns, box) end
  if status ~= 'queued' then return answer end
  return {answer, following, redis.call('HGET', ns .. 'call:' .. following, 'call')}
end
local is_late = record[3] == 'done' and record[4] == ARGV[2]
if is_late and still_runs then return tonumber(record[5]) end -- the answer to this was lost on its way
local now = is_late and 0 or finish_call()
if now <= 0 then
  if box and ARGV[4] == 'ok' and redis.call('HGET', KEYS[1], 'outcome') ~= 'ok' then
    redis.call('HINCRBY', ns .. 'late-answers', agent_of(box), 1)
    redis.call('EXPIRE', ns .. 'late-answers', ARGV[6])
  end
  if not is_late then return now end
  redis.call('HDEL', KEYS[1], 'token')
  redis.call('HSET', KEYS[1], 'ender', LATE)
  redis.call('ZREM', KEYS[2], ARGV[1])
  return let_next_come(now)
end
redis.call('HDEL', KEYS[1], 'parked', 'message')
if record[2] then
  local agent = string.match(KEYS[3], '[^:]*$')
  redis.call('ZREM', ns .. 'pending:' .. agent, ARGV[1])
  redis.call('ZREM', ns .. 'approvals:' .. agent, ARGV[1])
end
if ARGV[15] then
  accept_call({KEYS[9], KEYS[2], KEYS[10], KEYS[7], KEYS[8]}, {
    id = ARGV[15], call = ARGV[16], digest = ARGV[17], producer = '', patience = ARGV[18], ttl = ARGV[19],
    message = ARGV[14], ns = ns, box = ARGV[20], indexes = ARGV[21],
  })
elseif ARGV[14] and ARGV[14] ~= '' then
  redis.call('LPUSH', KEYS[7], ARGV[14])
  if redis.call('LLEN', KEYS[8]) == 0 then redis.call('LPUSH', KEYS[8], '1') end
end
if not still_runs then
  redis.call('HSET', KEYS[1], 'ender', ARGV[13])
  return box and let_next_come(now) or now
end
redis.call('HSET', KEYS[1], 'token', ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[12], ARGV[1])
keep_for(KEYS[2], ARGV[6])
return now
