-- Renew the leases of a worker's claims.
-- KEYS  due, call...
-- ARGV  lease ms, record TTL s, then id and token of each call
-- Returns the ids whose claim is lost.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lost = {}
for i = 2, #KEYS do
  local id, token = ARGV[2 * i - 1], ARGV[2 * i]
  if redis.call('HGET', KEYS[i], 'token') == token then
    redis.call('ZADD', KEYS[1], now + ARGV[1], id)
    redis.call('HDEL', KEYS[i], 'spared')
    redis.call('EXPIRE', KEYS[i], ARGV[2])
  else
    lost[#lost + 1] = id
  end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return lost
