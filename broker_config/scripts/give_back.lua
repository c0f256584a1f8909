-- Put reserved messages back at the front of their queues, each in front of the one before it, and wake a worker.
-- KEYS  in-flight hash, in-flight index
-- ARGV  wake-up key suffix, then the tags
-- Returns the number of messages. One whose queue is damaged stays in flight (wrong_type.lua is put before this).
local count = 0
for i = 2, #ARGV do
  local entry = redis.call('HGET', KEYS[1], ARGV[i])
  if entry then
    local cut = string.find(entry, '\n', 1, true)
    local queue = string.sub(entry, 1, cut - 1)
    local pushed = redis.pcall('RPUSH', queue, string.sub(entry, cut + 1))
    if type(pushed) == 'table' and not is_wrong_type(pushed) then return pushed end -- Redis takes no writes now
    if type(pushed) == 'number' then
      redis.call('HDEL', KEYS[1], ARGV[i])
      redis.call('ZREM', KEYS[2], ARGV[i])
      if redis.pcall('LLEN', queue .. ARGV[1]) == 0 then redis.call('LPUSH', queue .. ARGV[1], '1') end
      count = count + 1
    end
  else
    redis.call('ZREM', KEYS[2], ARGV[i])
  end
end
return count
