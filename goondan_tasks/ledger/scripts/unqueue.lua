-- Remove the message of a call that has ended from a queue that no worker reads. Expired calls are the first ones.
-- Only the first messages are searched: a search of a long queue would block Redis.
-- KEYS  queue
-- ARGV  id, how many messages are searched, and how many bytes of messages
-- Returns how many messages were removed.
local OURS = '^{"headers":{"lang":"py","task":"[^"]+","id":"([^"\\]+)"'
local left = tonumber(ARGV[3])
for place = 1, tonumber(ARGV[2]) do
  local message = redis.call('LINDEX', KEYS[1], -place)
  if not message or left <= 0 then return 0 end
  if string.match(message, OURS) == ARGV[1] then return redis.call('LREM', KEYS[1], -1, message) end
  left = left - #message
end
return 0
