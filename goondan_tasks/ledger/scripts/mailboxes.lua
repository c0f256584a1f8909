-- Mailboxes: the events of one agent's instance, in the order in which they were accepted. Only the first
-- may be claimed. A worker that meets another one drops its message; it is pushed again when its turn comes.
-- A box is named agent@instance, the instance percent-encoded; ns is the namespace with its colon.
--   <ns>mailbox:<box>      list of ids       <ns>mailboxes:<agent>  zset box -> since (ms), or last served
--   <ns>mail:<agent>       channel: something waits in a mailbox of the agent
-- ttl.lua is put before this.
local function agent_of(box)
  return string.match(box, '^[^@]*')
end

local function keep_mailbox(ns, box, ttl)
  keep_for(ns .. 'mailbox:' .. box, ttl)
  keep_for(ns .. 'mailboxes:' .. agent_of(box), ttl)
end

local function tell_of_mail(ns, box)
  redis.call('PUBLISH', ns .. 'mail:' .. agent_of(box), box)
end

local function put_in_mailbox(ns, box, id, now, ttl)
  redis.call('RPUSH', ns .. 'mailbox:' .. box, id)
  redis.call('ZADD', ns .. 'mailboxes:' .. agent_of(box), 'NX', now, box)
  keep_mailbox(ns, box, ttl)
  tell_of_mail(ns, box)
end

-- Return the first event that has not ended, with its record's status; those before it are taken out.
-- One that has its result, and a claim, is still handled.
local function first_in_mailbox(ns, box)
  local mailbox = ns .. 'mailbox:' .. box
  while true do
    local id = redis.call('LINDEX', mailbox, 0)
    if not id then
      redis.call('ZREM', ns .. 'mailboxes:' .. agent_of(box), box)
      return
    end
    local key = ns .. 'call:' .. id
    local status = redis.call('HGET', key, 'status')
    if status == 'queued' or status == 'running' or status == 'pending'
      or (status == 'done' and redis.call('HEXISTS', key, 'token') == 1) then return id, status end
    redis.call('LPOP', mailbox)
  end
end

-- Push the message of an event whose turn it is, if it has none any more.
-- Returns the id and JSON of one whose message must be sent by other means, or nothing.
local function release_event(ns, id, queue, wake_up)
  local record = redis.call('HMGET', ns .. 'call:' .. id, 'parked', 'message', 'call')
  if not record[1] then return end
  redis.call('HDEL', ns .. 'call:' .. id, 'parked', 'message')
  if record[2] == '' then return id, record[3] end
  redis.call('RPUSH', queue, record[2])
  if redis.call('LLEN', wake_up) == 0 then redis.call('LPUSH', wake_up, '1') end
end

-- Remove an event that has ended, and release the next one; returns as release_event does.
local function take_out_of_mailbox(ns, box, id, queue, wake_up)
  redis.call('LREM', ns .. 'mailbox:' .. box, 1, id)
  local following, status = first_in_mailbox(ns, box)
  if not following or status ~= 'queued' then return end
  tell_of_mail(ns, box)
  return release_event(ns, following, queue, wake_up)
end
