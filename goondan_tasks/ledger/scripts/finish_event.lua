-- Store the result of an event, send the answer to the agent that asked, and release the next event.
-- A tool call that was pending ends here, too: its answer is the event that tells its agent that it has ended.
-- If the handler of an event still runs although the result is known, its worker keeps the claim, and the event its
-- place in the mailbox. The next event is released when the same claim is finished again, by the worker or, after
-- its death, by a sweep.
-- KEYS  due, call, the event's queue and wake-up key; for an answer also the asker's queue and wake-up key, and if the
--       asker must handle it: call, calls:<agent> of the answer
-- ARGV  those of finish.lua for one call, namespace, lease (ms) if the handler still runs (else ''), a unique id of
--       this request, its mailbox ('' = a tool call); for an answer also its message ('' = none), and if
--       the asker must handle it: id, call JSON, digest, queue timeout (ms), record TTL (s), mailbox, indexes of traces
-- Returns as finish_call does. The same request again (the answer was lost) gets the same answer.
-- mailboxes.lua, accept.lua and finishing.lua are put before this.
local ttl, id, token, agent, outcome = ARGV[1], ARGV[7], ARGV[8], ARGV[9], ARGV[11]
local ns, lease, request = ARGV[16], ARGV[17], ARGV[18]
local names = {results = ARGV[2], running = ARGV[3], meta = ARGV[4], dead_letters = ARGV[5]}
local still_runs = lease ~= ''
local record = redis.pcall('HMGET', KEYS[2], 'box', 'suspendedAt', 'status', 'token', 'finishedAt', 'ender')
local box = record[1] or record.err and ARGV[19] ~= '' and ARGV[19]
local function release_next()
  take_out_of_mailbox(ns, box, id, KEYS[3], KEYS[4])
end
local function leave_pending()
  if not record[2] then return end
  redis.pcall('ZREM', ns .. 'pending:' .. agent, id)
  redis.pcall('ZREM', ns .. 'approvals:' .. agent, id)
end
local function takes(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end
-- Accept the answer that the asker must handle. An error here leaves the event unfinished, and whatever ends it sends the
-- answer. But keys that another program has overwritten keep no result from being stored: if `due` is one, a sweep makes it
-- again and finds the answer among the agent's calls; if the asker's queue is one, the answer is parked in its mailbox.
local function accept_answer()
  local is_sent = takes(KEYS[5], 'list')
  accept_call({KEYS[7], takes(KEYS[1], 'zset') and KEYS[1], KEYS[8], KEYS[5], KEYS[6]}, {
    id = ARGV[21], call = ARGV[22], digest = ARGV[23], producer = '', patience = ARGV[24], ttl = ARGV[25],
    message = is_sent and ARGV[20] or '', parked = not is_sent and ARGV[20], ns = ns, box = ARGV[26], indexes = ARGV[27],
  })
end
local LATE = request .. ' late'
if record[6] == request then return tonumber(record[5]) end
if record[6] == LATE then return 0 end
local is_late = record[3] == 'done' and record[4] == token
if is_late and still_runs then return tonumber(record[5]) end -- the same request again: its answer was lost
local ends, now = open_ends(ARGV[6]), 0
if not is_late then
  now = finish_call(ends, KEYS[2], ttl, names, {
    id = id, token = token, agent = agent, status = ARGV[10], outcome = outcome, kind = ARGV[12],
    result = ARGV[13], done_at = ARGV[14], failure = ARGV[15], still_runs = still_runs,
    before = ARGV[21] and accept_answer, is_event = box,
  })
end
if now <= 0 then
  if now == -2 and box then release_next() end -- a damaged record must not keep its mailbox closed
  close_ends(ends, KEYS[1], names)
  if now == -2 then return now end
  if box and outcome == 'ok' and redis.call('HGET', KEYS[2], 'outcome') ~= 'ok' then
    redis.pcall('HINCRBY', ns .. 'late-answers', agent_of(box), 1)
    redis.call('EXPIRE', ns .. 'late-answers', ttl)
  end
  if not is_late then return now end
  redis.call('HDEL', KEYS[2], 'token')
  redis.call('HSET', KEYS[2], 'ender', LATE)
  redis.pcall('ZREM', names.running .. agent, id)
  leave_pending()
  if box then release_next() end
  redis.pcall('ZREM', KEYS[1], id)
  return now
end
-- if the handler still runs, this renews its lease
redis.call('HDEL', KEYS[2], 'parked', 'message', 'spared', 'renewedAt')
-- what follows must not stop at the damaged key of another: the result is stored, and the next event waits
leave_pending()
if not ARGV[21] and ARGV[20] and ARGV[20] ~= '' then
  redis.pcall('LPUSH', KEYS[5], ARGV[20]) -- wakes no worker: the asker has the answer from its notification
end
if not still_runs then
  redis.call('HSET', KEYS[2], 'ender', request)
  if box then release_next() end
  close_ends(ends, KEYS[1], names) -- last: if this is broken off before, a sweep releases the next event
  return now
end
close_ends(ends, KEYS[1], names)
redis.call('ZADD', KEYS[1], now + lease, id)
keep_for(KEYS[1], ttl)
return now
