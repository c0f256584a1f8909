-- Hold a directory for a deletion: no worker opens it or spawns into it until the hold ends or expires
-- (directory.lua is put before this).
-- KEYS  instances, instance
-- ARGV  directory, token, duration (ms), time since which it must be unused (ms; '' = any), TTL (s)
-- Returns {'held', now, tokens of interrupted deletions or ''}, {'busy', now} if another deletion holds it, or
-- {'used', now} if it was used later. The same token again (the answer was lost) gets the same answer.
local now = now_ms()
local is_held = held_for(KEYS[2], now) > 0
if is_held and string.match(redis.call('HGET', KEYS[2], 'retiring'), '^%S+') ~= ARGV[2] then
  return {'busy', now}
end
local score = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
local used = type(score) == 'string' and tonumber(score)
if ARGV[4] ~= '' and used and used > tonumber(ARGV[4]) then return {'used', now} end
redis.call('HSET', KEYS[2], 'retiring', ARGV[2] .. ' ' .. string.format('%d', now + ARGV[3]))
redis.call('EXPIRE', KEYS[2], ARGV[5])
return {'held', now, redis.call('HGET', KEYS[2], 'aside') or ''}
