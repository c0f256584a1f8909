-- Record that the files which an interrupted deletion had set aside have been restored.
-- KEYS  instance
-- ARGV  token
-- Returns 1.
local rest = {}
for token in string.gmatch(redis.call('HGET', KEYS[1], 'aside') or '', '%S+') do
  if token ~= ARGV[1] then rest[#rest + 1] = token end
end
if #rest > 0 then
  redis.call('HSET', KEYS[1], 'aside', table.concat(rest, ' '))
else
  redis.call('HDEL', KEYS[1], 'aside')
end
return 1
