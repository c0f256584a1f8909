-- End a deletion's hold, and remove the instance or keep it.
-- KEYS  instances, instance
-- ARGV  directory, token, '1' to remove the instance
-- Returns 1, or 0 if the hold was lost: then nothing is changed. If the instance is already gone, it returns 1: the
-- answer to an earlier request may have been lost.
local mark = redis.call('HGET', KEYS[2], 'retiring')
if not mark and redis.call('EXISTS', KEYS[2]) == 0 then return 1 end
if not mark or string.match(mark, '^%S+') ~= ARGV[2] then return 0 end
if ARGV[3] == '1' then
  redis.call('DEL', KEYS[2])
  redis.call('ZREM', KEYS[1], ARGV[1])
else
  redis.call('HDEL', KEYS[2], 'retiring')
end
return 1
