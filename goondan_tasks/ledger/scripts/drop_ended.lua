-- Remove the messages of calls that have ended from a part of a queue.
-- KEYS  queue
-- ARGV  prefix of the key call, how many of the first messages are left out, how many are read
-- Returns {how many were read, how many were removed}.
local OURS = '^{"headers":{"lang":"py","task":"[^"]+","id":"([^"\\]+)"'
local GONE = 'removed'
local passed, count = tonumber(ARGV[2]), tonumber(ARGV[3])
local messages = redis.call('LRANGE', KEYS[1], -passed - count, -passed - 1)
local removed = 0
for i, message in ipairs(messages) do
  local id = string.match(message, OURS)
  local status = id and redis.pcall('HGET', ARGV[1] .. id, 'status')
  if status == 'done' or status == 'dead' then
    redis.call('LSET', KEYS[1], -passed - 1 - (#messages - i), GONE)
    removed = removed + 1
  end
end
-- by a value of their own, or each would be looked for in the whole queue
if removed > 0 then redis.call('LREM', KEYS[1], -removed, GONE) end
return {#messages, removed}
