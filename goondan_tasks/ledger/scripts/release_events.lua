-- Release the first event of each mailbox if it is parked, because other processes handle the agent's events now.
-- KEYS  the agent's queue of events, its wake-up key
-- ARGV  namespace, mailboxes...
-- Returns {id, call JSON, ...}: events whose messages the caller must send. mailboxes.lua is put before this.
local unsent = {}
for i = 2, #ARGV do
  local first, status = first_in_mailbox(ARGV[1], ARGV[i])
  if status == 'queued' then
    local id, call = release_event(ARGV[1], first, KEYS[1], KEYS[2])
    if id then
      unsent[#unsent + 1] = id
      unsent[#unsent + 1] = call
    end
  end
end
return unsent
