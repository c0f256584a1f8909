-- End the leases of a process that has ended. The next sweep decides about its calls and spares none of them.
-- KEYS  due
-- ARGV  lease (ms), call key prefix, the id of the process, with which its tokens begin
-- Returns the number of leases.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local count = 0
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now + ARGV[1], 'BYSCORE')) do
  local key = ARGV[2] .. id
  local token = redis.pcall('HGET', key, 'token') -- another program may have written the key
  if type(token) == 'string' and string.sub(token, 1, #ARGV[3]) == ARGV[3] then
    redis.call('ZADD', KEYS[1], now, id)
    redis.call('HSET', key, 'spared', token)
    count = count + 1
  end
end
return count
