-- Take the calls that are past their deadline or their lease, and decide about each. Scheduled calls whose time has come
-- are queued, as wake.lua does.
-- The caller then holds their claims and must settle each one before its own lease ends.
-- If there was no sweep for a while, Redis was away and live workers could not renew their leases: they get time to do
-- so before any call counts as lost. A claim is spared only once until it is renewed; otherwise, where sweeps are
-- rare, it would be spared forever.
-- KEYS  due, last sweep
-- ARGV  token, lease (ms), most calls to take, call key prefix, longest time between two sweeps (ms), TTL (s)
-- Returns a list of {id, verdict, attempt, queued at (ms), call JSON, when it was suspended (ms, or nothing),
-- completion, the worker that has lost it, when that worker claimed it (ms), '1' if it has its result, and if its
-- worker runs, but cannot end it, the token of an event, which keeps its claim and its place in the mailbox, or ''};
-- verdicts:
--   cancelled | expired | limited (it waited for a limit) | overran (its worker runs, and cannot end it) | unknown |
--   poisoned | unresolved | unapproved
--              store that error (the last two: it was pending)
--   completed  store the completion
--   requeue    release it with a message
--   damaged    nothing: its key holds another type; it is looked at again when its record would have expired
-- The row of a record that cannot be read has no call JSON. mailboxes.lua, rebuilding.lua and waking.lua are put
-- before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ns = string.sub(ARGV[4], 1, -#'call:' - 1)
rebuild(KEYS[1], ns, now, tonumber(ARGV[2]), ARGV[6])
local swept = redis.pcall('GET', KEYS[2]) -- another program may have written the key, which is written again here
local last = type(swept) == 'string' and tonumber(swept) or 0
redis.call('SET', KEYS[2], now, 'EX', ARGV[6])
if now - last > tonumber(ARGV[5]) then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now + ARGV[2] / 2, 'BYSCORE')) do
    local key = ARGV[4] .. id
    local claim = redis.pcall('HMGET', key, 'status', 'token', 'spared') -- another program may have written the key
    if (claim[1] == 'running' or claim[1] == 'done') and claim[2] and claim[2] ~= claim[3] then
      local renewed = redis.call('ZSCORE', KEYS[1], id) - ARGV[2]
      redis.call('ZADD', KEYS[1], now + ARGV[2] / 2, id)
      redis.call('HSET', key, 'spared', claim[2], 'renewedAt', renewed)
    end
  end
end

local MOST_MAILBOXES = 1000 -- of an agent, are searched for a damaged event

-- Push the message of the next event of a mailbox.
local function admit_next(agent, box)
  local queue = 'agent.' .. agent .. '.events'
  local following, status = first_in_mailbox(ns, box)
  if status == 'queued' then release_event(ns, following, queue, queue .. '.bell') end
end

-- Take a call that has ended, or whose record is damaged or gone, out of the lists of calls that run or wait. Its agent is
-- not known.
local function take_out_of_lists(id)
  local agents = redis.pcall('HKEYS', ns .. 'agents')
  for _, agent in ipairs(agents) do
    for _, index in ipairs({'running:', 'pending:', 'approvals:', 'waiting:', 'scheduled:'}) do
      redis.pcall('ZREM', ns .. index .. agent, id)
    end
  end
  return agents
end

-- Drop a call that has ended, and admit the event behind it: the script that ended it was broken off.
local function drop_ended(id, key, box)
  take_out_of_lists(id)
  if box then admit_next(agent_of(box), box) end
  if redis.call('TTL', key) < 0 then redis.call('EXPIRE', key, ARGV[6]) end
end

-- Drop a call whose record is damaged, and admit the event behind it.
local function forget(id)
  for _, agent in ipairs(take_out_of_lists(id)) do
    for _, box in ipairs(redis.pcall('ZRANGE', ns .. 'mailboxes:' .. agent, 0, MOST_MAILBOXES - 1)) do
      if redis.pcall('LINDEX', ns .. 'mailbox:' .. box, 0) == id then admit_next(agent, box) end
    end
  end
  return {id, 'damaged', 0, 0, ''}
end

-- Decide about one call; returns its row, or nothing if there is nothing to do. Fails on an unknown kind of record.
local function take(id)
  local key = ARGV[4] .. id
  local record = redis.pcall('HMGET', key, 'status', 'attempt', 'queuedAt', 'call', 'notStarted',
    'idempotent', 'maxAttempts', 'deaths', 'cancelled', 'waiting', 'worker', 'suspendedAt', 'completion',
    'approval', 'token', 'claimedAt', 'overran', 'spared', 'renewedAt', 'box', 'deadline', 'queue')
  if record.err then return forget(id) end
  local status, verdict = record[1], 'requeue'
  local completion = record[13]
  -- an event that has its result, but whose handler still ran when the worker died
  local is_unfinished = status == 'done' and record[15]
  local is_held = status == 'running' and record[17] and record[17] == record[15] and not record[5] -- keep_leases.lua
  if status ~= 'queued' and status ~= 'running' and status ~= 'pending' and status ~= 'scheduled'
    and not is_unfinished then
    if status and status ~= 'done' and status ~= 'dead' or not status and redis.call('EXISTS', key) == 1 then
      error('its status is not known')
    end
    if status then drop_ended(id, key, record[20]) else take_out_of_lists(id) end
    redis.call('ZREM', KEYS[1], id)
    return nil
  end
  local deadline = number_in(record[21], 0)
  if (status == 'queued' or status == 'pending') and not record[9] and not completion and deadline > now then
    redis.call('ZADD', KEYS[1], deadline, id) -- the script that was to write its deadline was broken off
    return nil
  end
  if status == 'scheduled' and deadline > now then
    if not wake(ns, KEYS[1], id, now) then error('its record or mailbox is damaged') end
    return nil
  end
  -- a queued call that an earlier sweep took, but did not settle, has no worker
  if record[9] then
    verdict = 'cancelled'
  elseif status == 'pending' then
    verdict = completion and 'completed' or record[14] and 'unapproved' or 'unresolved'
  elseif status == 'queued' or status == 'scheduled' or not record[11] then
    verdict = record[10] and 'limited' or 'expired'
  elseif is_held then
    verdict = 'overran'
  elseif not record[5] and record[6] ~= '1' then
    verdict = 'unknown'
  elseif number_in(record[8], 0) + (record[5] and 1 or 5) >= 5 * (record[7] or 1) then
    verdict = 'poisoned'
  end
  -- its worker died before the handler returned, but the call was completed by then
  if completion and (verdict == 'unknown' or verdict == 'poisoned' or verdict == 'overran') then verdict = 'completed' end
  local had_it = status ~= 'pending' and status ~= 'scheduled' and record[11]
  if had_it and status == 'running' then
    -- the last sign of life: its last renewal, or the end of its process, to which end_leases.lua sets the lease
    local seen, is_spared = redis.call('ZSCORE', KEYS[1], id), record[18] and record[18] == record[15]
    seen = is_spared and tonumber(record[19] or seen) or seen - ARGV[2]
    seen = math.max(seen, tonumber(record[16]) or 0)
    local ending = record[5] and 'unstarted' or 'died'
    if is_held then ending = record[9] and 'E_TOOL_CANCELLED' or 'overran' end
    keep_former(key, record[2], record[16], seen, ending, had_it)
  end
  local token = is_held and record[20] and record[15] or ARGV[1]
  local row = {id, verdict, number_in(record[2], 0), number_in(record[3], 0), record[4], record[12], completion, had_it,
    had_it and number_in(record[16], 0), is_unfinished and '1',
    is_held and (record[20] and token or '')}
  local is_open = status == 'queued' or status == 'scheduled'
  redis.call('HSET', key, 'status', is_open and 'running' or status, 'token', token)
  if record[22] then -- it was scheduled
    leave_schedule(ns, id, record[22])
    forget_schedule(ns, id)
  end
  if is_held then redis.call('HSET', key, 'overran', token) end -- for another sweep, if this one is not carried out
  return row
end

local taken = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])) do
  local is_sound, row = pcall(take, id)
  if row then
    -- a process of another version may be able to read the record later; the other calls are swept anyway
    taken[#taken + 1] = is_sound and row or {id, 'requeue', 0, 0, ''}
    local pause = is_sound and row[2] == 'damaged' and ARGV[6] * 1000 or ARGV[2]
    redis.call('ZADD', KEYS[1], now + pause, id)
  end
end
return taken
