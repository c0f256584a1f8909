-- Accept a batch of calls of one producer: write their records and index entries, and push their messages.
-- KEYS  due; then for each queue that messages go to: calls:<agent>, queue, its wake-up key
-- ARGV  namespace, producer ('' = plain Celery), record TTL (s); then eleven for each call: id, call JSON, digest, the
--       number of its queue, the call's own deadline (ms, '' = none), queue timeout (ms), message ('' = none: its producer
--       answers it), its indexes of traces, an event's mailbox ('' = a tool call), the
--       time before which it must not run (ms, '' = none), and for how long after its end its stream is kept (s, '' = it has none)
-- Returns {number of a call, 'known', 'conflict' or 'damaged', its status, ...} for calls that were submitted before, or
-- whose records are damaged, numbered from 0 (accept.lua is put before this).
local ns, producer, ttl = ARGV[1], ARGV[2], ARGV[3]
local batch, queues, old = open_batch(KEYS[1]), {}, {}
for at = 2, #KEYS, 3 do queues[#queues + 1] = add_queue(batch, KEYS[at], KEYS[at + 1], KEYS[at + 2]) end
for at = 4, #ARGV, 11 do
  local id, box = ARGV[at], ARGV[at + 8]
  local word, status = add_call(batch, queues[ARGV[at + 3] + 1], ns .. 'call:' .. id, {
    id = id, call = ARGV[at + 1], digest = ARGV[at + 2], producer = producer, is_celery = producer == '',
    deadline = ARGV[at + 4], patience = ARGV[at + 5], ttl = ttl, message = ARGV[at + 6], indexes = ARGV[at + 7],
    ns = ns, box = box ~= '' and box or nil, not_before = ARGV[at + 9], keep = ARGV[at + 10],
  })
  if word then
    old[#old + 1] = (at - 4) / 11
    old[#old + 1] = word
    old[#old + 1] = status
  end
end
close_batch(batch)
return old
