-- Release the first event of each mailbox if it is parked, because other processes handle the agent's events now.
-- KEYS  the agent's queue of events, its wake-up key
-- ARGV  namespace, mailboxes...
-- Returns nothing. mailboxes.lua is put before this.
for i = 2, #ARGV do
  local first, status = first_in_mailbox(ARGV[1], ARGV[i])
  if status == 'queued' then release_event(ARGV[1], first, KEYS[1], KEYS[2]) end
end
