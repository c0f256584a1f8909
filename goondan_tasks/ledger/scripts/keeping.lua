-- Keeps a Step that has opened. Shared by keep_step.lua and finish_step.lua; turn_lines.lua is put before this.
-- keys, given  how many KEYS and ARGV precede those of keep_step.lua
-- Returns the error of the Turn's record, or false
local function keep_step(keys, given)
  for first = given + 6, #ARGV, 1000 do
    redis.call('HSET', KEYS[keys + 1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
  end
  local ttl, revision = ARGV[given + 1], KEYS[keys + 4]
  redis.call('EXPIRE', KEYS[keys + 1], ttl)
  redis.call('SET', KEYS[keys + 2], ARGV[given + 2], 'EX', ttl)
  if revision then redis.call('SET', revision, ARGV[given + 4], 'EX', ARGV[given + 5]) end
  return add_line(KEYS[keys + 3], ARGV[given + 3], ttl)
end
