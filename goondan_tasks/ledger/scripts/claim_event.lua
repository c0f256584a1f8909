-- Claim an event for one run, if it is the first in its mailbox. An event from a plain Celery producer gets its
-- record and its place in the mailbox here.
-- KEYS  call, due, running:<agent>, calls:<agent>, queue, its wake-up key
-- ARGV  id, token, worker, lease (ms), record TTL (s), '1' if idempotent, max attempts, its export's time limit
--       (ms, 0 = none), call JSON, digest, its deadline (ms, '' = none), queue timeout (ms), '1' if a record of another
--       event is 'taken', indexes of traces, namespace, mailbox,
--       the message to push when the event is the first in its mailbox,
--       '1' if workers do not handle this agent's events: a producer fetches them,
--       '1' if it was stored when it was queued: without a record it has ended long ago, and is absent
-- Returns as claim_call does, with one more verdict: waiting (the event is parked; its message can be dropped).
local id, ns, box = ARGV[1], ARGV[15], ARGV[16]
local status = redis.pcall('HGET', KEYS[1], 'status')
if type(status) == 'table' then -- its record is damaged, which must not keep its mailbox closed
  local first, first_status = first_in_mailbox(ns, box)
  if ARGV[18] ~= '1' and first_status == 'queued' then release_event(ns, first, KEYS[5], KEYS[6]) end
  return status
end
if not status then
  if ARGV[19] == '1' then return {'absent', 0, 0, 0} end
  accept_call({KEYS[1], KEYS[2], KEYS[4], KEYS[5], KEYS[6]}, {
    id = id, call = ARGV[9], digest = ARGV[10], producer = '', is_celery = true, deadline = ARGV[11],
    patience = ARGV[12], ttl = ARGV[5], message = '', indexes = ARGV[14], ns = ns, box = box,
  })
  status = 'queued'
end
if ARGV[13] == '1' and is_other(KEYS[1], ARGV[10]) then return {'taken', 0, 0, 0} end -- it must not replace the message
local first, first_status
if status == 'queued' then first, first_status = first_in_mailbox(ns, box) end
if status == 'queued' and (ARGV[18] == '1' or first ~= id) then
  redis.call('HSET', KEYS[1], 'parked', '1', 'message', ARGV[17])
  -- if the event before it has vanished with its record, the first one was never released
  if ARGV[18] ~= '1' and first_status == 'queued' then release_event(ns, first, KEYS[5], KEYS[6]) end
  local record = redis.call('HMGET', KEYS[1], 'attempt', 'queuedAt')
  local time = redis.call('TIME')
  return {'waiting', number_in(record[1], 0), number_in(record[2], 0), time[1] * 1000 + math.floor(time[2] / 1000)}
end
local terms = {worker = ARGV[3], lease = ARGV[4], ttl = ARGV[5], idempotent = ARGV[6], most = ARGV[7], limit = ARGV[8]}
return claim_alone(KEYS, id, ARGV[2], terms)
