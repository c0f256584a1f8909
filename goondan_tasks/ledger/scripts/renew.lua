-- Renew the leases of claims, and keep the mailboxes of claimed events alive.
-- KEYS  due, call...
-- ARGV  lease (ms), record TTL (s), then id and token of each call
-- Returns the ids whose claims are lost; a damaged record has none. mailboxes.lua is put before this.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lost = {}
for i = 2, #KEYS do
  local id, token = ARGV[2 * i - 1], ARGV[2 * i]
  local record = redis.pcall('HMGET', KEYS[i], 'token', 'box')
  if record[1] == token then
    if record[2] then
      keep_mailbox(string.match(KEYS[1], '^(.*)due$'), record[2], ARGV[2])
    end
    redis.call('ZADD', KEYS[1], now + ARGV[1], id)
    redis.call('HDEL', KEYS[i], 'spared', 'renewedAt', 'overran')
    redis.call('EXPIRE', KEYS[i], ARGV[2])
  else
    lost[#lost + 1] = id
  end
end
keep_for(KEYS[1], ARGV[2])
return lost
