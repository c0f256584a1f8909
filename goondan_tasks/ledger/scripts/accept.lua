-- Accepts calls in batches. Shared by submit.lua, finish_event.lua and claim_event.lua; ttl.lua, tracing.lua,
-- mailboxes.lua, scheduled.lua and streams.lua are put before this.

-- Begin a batch. close_batch writes it, the keys that its calls share each once. The records come last: if the script
-- fails before, for example because another program has written a key, deadlines and messages without records are
-- dropped, and the calls can be submitted again.
local function open_batch(due)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return {time = time, now = now, size = 0, due = due, deadlines = {}, ttl = 0, queues = {}, traces = {}, new = {},
    scheduled = {}}
end

-- Add a queue to which calls of the batch go.
local function add_queue(batch, calls, queue, wake_up)
  local added = {calls = calls, queue = queue, wake_up = wake_up, ids = {}, messages = {}}
  batch.queues[#batch.queues + 1] = added
  return added
end

-- Answer for a call that was submitted before. The new producer is notified of the result, too.
local function known_call(key, status, new)
  local record = redis.call('HMGET', key, 'digest', 'producers', 'args')
  -- in the record of a plain call that has ended, the digest precedes the arguments (finishing.lua)
  if (record[1] or string.match(record[3] or '', '^%S*')) ~= new.digest then return 'conflict', status end
  if status ~= 'done' and status ~= 'dead' then
    local waiting = record[2] or ''
    if not string.find(' ' .. waiting .. ' ', ' ' .. new.producer .. ' ', 1, true) then
      redis.call('HSET', key, 'producers', waiting .. ' ' .. new.producer)
    end
  end
  return 'known', status
end

-- Accept one call.
-- key    its record
-- queue  what add_queue returned
-- new    ns, id, call (JSON), digest, producer ('' = no client of this package), is_celery (whether a plain Celery producer
--        reads its own result record), deadline (ms, '' = none), patience (ms that it may wait without a deadline), ttl
--        (of the record, s), message ('' = none: its producer answers it, or a worker has it), indexes (of traces, as
--        tracing.lua takes them), not_before (ms; nothing or '' = at once), keep (for how long after its end its stream is
--        kept, s; nothing or '' = it has none); for an event also box, parked (the message of one that is parked at once)
-- A call whose time is still to come is scheduled: its record keeps the message, and an event has no place in its mailbox,
-- until waking.lua queues it. Its patience begins then.
-- Returns nothing for a new call; 'known' or 'conflict', and its status, for one that was submitted before; 'damaged' for
-- one whose record or mailbox is: it is not accepted, the others of the batch are.
local function add_call(batch, queue, key, new)
  local same = batch.new[key]
  if same then return same.digest == new.digest and 'known' or 'conflict', 'queued' end
  local status = redis.pcall('HGET', key, 'status')
  if type(status) == 'table' then return 'damaged', '' end
  if status then return known_call(key, status, new) end
  local size, now, time = batch.size, batch.now, batch.time
  local starts_at = tonumber(new.not_before) or now
  local is_later = starts_at > now and new.message ~= ''
  local deadline = tonumber(new.deadline) or math.max(now, starts_at) + new.patience
  local ttl = math.ceil(new.ttl + math.max(0, deadline - now) / 1000)
  if new.box and not is_later and not put_in_mailbox(new.ns, new.box, new.id, now, ttl) then return 'damaged', '' end
  -- queuedAt has microseconds, one more for each call: it is the order in which calls wait for a limit
  new.queued_at, new.deadline, new.ttl = time[1] * 1000 + (time[2] + size) / 1000, deadline, ttl
  batch.new[key], batch.size = new, size + 1
  batch.deadlines[2 * size + 1] = is_later and math.min(starts_at, deadline) or deadline
  batch.deadlines[2 * size + 2] = new.id
  if ttl > batch.ttl then batch.ttl = ttl end
  queue.ids[#queue.ids + 1] = now
  queue.ids[#queue.ids + 1] = new.id
  if is_later then
    new.starts_at, new.queue = starts_at, queue.queue
    local index = scheduled_index(new.ns, queue.queue)
    local found = batch.scheduled[index] or {}
    batch.scheduled[index] = found
    found[#found + 1] = starts_at
    found[#found + 1] = new.id
  elseif new.message ~= '' then
    queue.messages[#queue.messages + 1] = new.message
  end
  for index in string.gmatch(new.indexes or '', '%S+') do
    local found = batch.traces[index] or {}
    batch.traces[index] = found
    found[#found + 1] = now
    found[#found + 1] = new.id
  end
end

-- All fields in one command: an event without its box would never leave its mailbox.
local function write_record(key, new)
  local more = {}
  if new.is_celery then more = {'celery', '1'} end
  if new.box then more[#more + 1], more[#more + 2] = 'box', new.box end
  if new.parked then
    for _, one in ipairs({'parked', '1', 'message', new.parked}) do more[#more + 1] = one end
  end
  if new.keep and new.keep ~= '' then
    more[#more + 1], more[#more + 2] = 'keep', new.keep
    open_stream(new.ns, new.id, new.ttl)
  end
  if new.starts_at then
    for _, field in ipairs({'notBefore', new.starts_at, 'queue', new.queue, 'message', new.message}) do
      more[#more + 1] = field
    end
  end
  redis.call('HSET', key, 'status', new.starts_at and 'scheduled' or 'queued', 'call', new.call, 'digest', new.digest, 'producers', new.producer,
    'queuedAt', new.queued_at, 'deadline', new.deadline, 'attempt', 0, unpack(more))
  redis.call('EXPIRE', key, new.ttl)
end

-- Write the batch. unpack takes 2,000 calls at most.
local function close_batch(batch)
  if batch.size == 0 then return end
  if batch.due then
    redis.call('ZADD', batch.due, unpack(batch.deadlines))
    keep_for(batch.due, batch.ttl)
  end
  for _, queue in ipairs(batch.queues) do
    if #queue.messages > 0 then
      redis.call('LPUSH', queue.queue, unpack(queue.messages))
      if redis.pcall('LLEN', queue.wake_up) == 0 then redis.call('LPUSH', queue.wake_up, '1') end
    end
  end
  for key, new in pairs(batch.new) do write_record(key, new) end
  for _, queue in ipairs(batch.queues) do
    if #queue.ids > 0 then
      redis.pcall('ZADD', queue.calls, unpack(queue.ids)) -- only a list: if it is damaged, the calls count all the same
      redis.pcall('ZREMRANGEBYRANK', queue.calls, 0, -10001)
      keep_for(queue.calls, batch.ttl)
    end
  end
  for index, ids in pairs(batch.scheduled) do join_schedule(index, ids, batch.ttl) end
  for index, ids in pairs(batch.traces) do add_to_trace(index, ids, batch.ttl) end
end

-- Accept a single call.
-- keys  call, due (false: the next sweep finds its deadline), calls:<agent>, queue, its wake-up key
local function accept_call(keys, new)
  local batch = open_batch(keys[2])
  add_call(batch, add_queue(batch, keys[3], keys[4], keys[5]), keys[1], new)
  close_batch(batch)
end
