-- End a deletion's hold: forget the instance, or leave it as it was.
-- KEYS  instances, instance
-- ARGV  directory, token, '1' to forget
-- Returns 1, or 0 if the hold was lost: then nothing is changed. Forgotten already counts as done: the answer
-- may have been lost on its way.
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
