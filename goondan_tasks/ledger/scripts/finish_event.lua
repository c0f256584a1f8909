-- Store what an agent made of an event, send the answer to whoever asked, and let the next event come.
-- A tool call that was pending ends here too: its answer is the event which tells its agent of that.
-- KEYS  those of finishing.lua, the event's queue and bell; for an answer, the asker's queue and bell, and if
--       the asker is to handle it: call, calls:<agent> of the answer
-- ARGV  those of finishing.lua, namespace; for an answer, its message ('' = sent by other means), and if the
--       asker is to handle it: id, call JSON, digest, queue timeout ms, record TTL s, mailbox, indexes of traces
-- Returns as finish_call does, or {time, id, call JSON}: the next event, to be sent by other means.
-- mailboxes.lua, accepting.lua and finishing.lua stand before this.
local ns = ARGV[11]
local record = redis.call('HMGET', KEYS[1], 'box', 'suspendedAt')
local box = record[1]
local now = finish_call()
if now <= 0 then
  if box and ARGV[4] == 'ok' and redis.call('HGET', KEYS[1], 'outcome') ~= 'ok' then
    redis.call('HINCRBY', ns .. 'late-answers', agent_of(box), 1)
    redis.call('EXPIRE', ns .. 'late-answers', ARGV[6])
  end
  return now
end
redis.call('HDEL', KEYS[1], 'parked', 'message')
if record[2] then
  local agent = string.match(KEYS[3], '[^:]*$')
  redis.call('ZREM', ns .. 'pending:' .. agent, ARGV[1])
  redis.call('ZREM', ns .. 'approvals:' .. agent, ARGV[1])
end
if ARGV[13] then
  accept_call({KEYS[9], KEYS[2], KEYS[10], KEYS[7], KEYS[8]}, {
    id = ARGV[13], call = ARGV[14], digest = ARGV[15], producer = '', patience = ARGV[16], ttl = ARGV[17],
    message = ARGV[12], ns = ns, box = ARGV[18], indexes = ARGV[19],
  })
elseif ARGV[12] and ARGV[12] ~= '' then
  redis.call('LPUSH', KEYS[7], ARGV[12])
  if redis.call('LLEN', KEYS[8]) == 0 then redis.call('LPUSH', KEYS[8], '1') end
end
if not box then return now end
local following, call = take_out_of_mailbox(ns, box, ARGV[1], KEYS[5], KEYS[6])
if following then return {now, following, call} end
return now
