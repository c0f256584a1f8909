-- Keep a Step that has opened, unless it is kept already: its producer may have read it. turn_lines.lua is put before
-- this.
-- KEYS  step, catalog, turn, step-revision (only where revisions are remembered)
-- ARGV  ttl (s), catalog (JSON), line for the Turn (JSON), revision, its ttl (s), then each field of the step and its value
-- Returns {the field `step` as it was kept before, or false, the error of the Turn's record, or false}
local kept = redis.call('HGET', KEYS[1], 'step')
if kept then return {kept, false} end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[1])
if KEYS[4] then redis.call('SET', KEYS[4], ARGV[4], 'EX', ARGV[5]) end
for first = 6, #ARGV, 1000 do
  redis.call('HSET', KEYS[1], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return {false, add_line(KEYS[3], ARGV[3], ARGV[1])}
