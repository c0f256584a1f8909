-- A mailbox holds the events of one agent's instance, in the order in which they were accepted. Only the first may be
-- claimed. A worker that receives another one parks it, and its message is pushed again when it is the first.
-- A box is named agent@instance, with the instance percent-encoded; ns is the namespace with its colon.
--   <ns>mailbox:<box>      list of ids
--   <ns>mailboxes:<agent>  zset box -> since when it is not empty, or when it was last served (ms)
--   <ns>mail:<agent>       channel: an event waits in a mailbox of the agent
-- ttl.lua and wrong_type.lua are put before this.
local function agent_of(box)
  return string.match(box, '^[^@]*')
end

local function keep_mailbox(ns, box, ttl)
  keep_for(ns .. 'mailbox:' .. box, ttl)
  keep_for(ns .. 'mailboxes:' .. agent_of(box), ttl)
end

local function notify_of_mail(ns, box)
  redis.call('PUBLISH', ns .. 'mail:' .. agent_of(box), box)
end

-- Return whether the mailbox takes the event; a damaged one does not.
local function put_in_mailbox(ns, box, id, now, ttl)
  local pushed = redis.pcall('RPUSH', ns .. 'mailbox:' .. box, id)
  if type(pushed) == 'table' then
    if is_wrong_type(pushed) then return false end
    redis.call('RPUSH', ns .. 'mailbox:' .. box, id) -- Redis takes no writes now: fail as a whole
  end
  redis.pcall('ZADD', ns .. 'mailboxes:' .. agent_of(box), 'NX', now, box)
  keep_mailbox(ns, box, ttl)
  notify_of_mail(ns, box)
  return true
end

-- Return the first event that has not ended, and its status; events before it are removed, those with damaged records,
-- too.
-- The handler of an event with a result and a claim still runs.
local function first_in_mailbox(ns, box)
  local mailbox = ns .. 'mailbox:' .. box
  while true do
    local id = redis.pcall('LINDEX', mailbox, 0)
    if type(id) ~= 'string' then -- it is empty, or damaged
      redis.pcall('ZREM', ns .. 'mailboxes:' .. agent_of(box), box)
      return
    end
    local key = ns .. 'call:' .. id
    local status = redis.pcall('HGET', key, 'status')
    if status == 'queued' or status == 'running' or status == 'pending' or status == 'scheduled'
      or (status == 'done' and redis.call('HEXISTS', key, 'token') == 1) then return id, status end
    redis.call('LPOP', mailbox)
  end
end

-- Push the message of a parked event that is now the first.
local function release_event(ns, id, queue, wake_up)
  local record = redis.call('HMGET', ns .. 'call:' .. id, 'parked', 'message')
  if not (record[1] and record[2]) then return end -- or another program has written that it is parked
  redis.call('RPUSH', queue, record[2])
  if redis.pcall('LLEN', wake_up) == 0 then redis.call('LPUSH', wake_up, '1') end
  redis.call('HDEL', ns .. 'call:' .. id, 'parked', 'message') -- last: the record keeps what no queue takes
end

-- Remove an event that has ended and release the next one.
local function take_out_of_mailbox(ns, box, id, queue, wake_up)
  redis.pcall('LREM', ns .. 'mailbox:' .. box, 1, id)
  local following, status = first_in_mailbox(ns, box)
  if not following or status ~= 'queued' then return end
  notify_of_mail(ns, box)
  release_event(ns, following, queue, wake_up)
end
