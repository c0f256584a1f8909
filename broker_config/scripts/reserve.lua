-- Acknowledge finished messages and reserve new ones: no message is ever outside both its queue and
-- the in-flight index.
-- KEYS  in-flight hash, in-flight index, then queue and bell of each queue
-- ARGV  how many to reserve, how many beyond that (of which half of a queue is left for other workers),
--       '1' if only what `accompany` speaks for: the first message for which it does not stays, and ends this;
--       tag prefix, the argument of `accompany`, how many acknowledged tags, those tags...
-- Returns {numbers of the emptied queues, {tag, number of its queue, message, what `accompany` says, ...}}.
-- Before this stands `local function accompany(queue, message, tag, argument)`, see Companion.
local wanted, extra, is_choosy = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local prefix, acked = ARGV[4], tonumber(ARGV[6])
for first = 7, 6 + acked, 1000 do
  local last = math.min(first + 999, 6 + acked)
  redis.call('HDEL', KEYS[1], unpack(ARGV, first, last))
  redis.call('ZREM', KEYS[2], unpack(ARGV, first, last))
end
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local emptied, taken = {}, {}
for place = 3, #KEYS, 2 do
  local queue, bell = KEYS[place], KEYS[place + 1]
  local half = math.ceil(redis.call('LLEN', queue) / 2)
  local most = math.max(wanted, math.min(wanted + extra, #taken / 4 + half))
  while #taken < 4 * most do
    local message = redis.call('RPOP', queue)
    if not message then break end
    local tag = prefix .. string.format('%03d', #taken / 4)
    redis.call('HSET', KEYS[1], tag, queue .. '\n' .. message)
    redis.call('ZADD', KEYS[2], now, tag)
    local said = accompany(queue, message, tag, ARGV[5])
    if is_choosy and not said then
      redis.call('HDEL', KEYS[1], tag)
      redis.call('ZREM', KEYS[2], tag)
      redis.call('RPUSH', queue, message)
      return {emptied, taken}
    end
    local last = #taken
    taken[last + 1], taken[last + 2], taken[last + 3], taken[last + 4] = tag, (place - 3) / 2, message, said
  end
  if redis.call('LLEN', queue) == 0 then
    emptied[#emptied + 1] = (place - 3) / 2
    redis.call('DEL', bell) -- it would wake somebody for nothing
  elseif redis.call('LLEN', bell) == 0 then
    redis.call('LPUSH', bell, '1') -- one bell wakes one waiter: whoever leaves messages behind wakes the next
  end
end
return {emptied, taken}
