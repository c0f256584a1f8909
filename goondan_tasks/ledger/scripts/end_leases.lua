-- End the leases of a process that has ended: the next sweep decides about its calls, and spares none of them.
-- KEYS  due
-- ARGV  lease ms, call key prefix, the process's id, with which its tokens begin
-- Returns how many there were.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now + ARGV[1], 'BYSCORE')) do
  local key = ARGV[2] .. id
  local token = redis.pcall('HGET', key, 'token') -- it may be no record of ours
  if type(token) == 'string' and string.sub(token, 1, #ARGV[3]) == ARGV[3] then
    redis.call('ZADD', KEYS[1], now, id)
    redis.call('HSET', key, 'spared', token)
    count = count + 1
  end
end
return count
