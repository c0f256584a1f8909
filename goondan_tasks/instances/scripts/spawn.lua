-- Create an agent's instance, or return the existing one (directory.lua is put before this).
-- KEYS  instances, instance, the directory that contains cwd (without cwd, the instance again)
-- ARGV  directory, agent, workspace, instance key, owner as JSON, cwd or '', the name of the field guest:…,
--       the request, TTL (s)
-- Returns {'spawned' or 'reused', its cwd or ''}, or {'held', ms} while a deletion holds one of the directories.
-- The same request again (the answer was lost) gets the same answer.
local now = now_ms()
local held = math.max(held_for(KEYS[2], now), held_for(KEYS[3], now))
if held > 0 then return {'held', held} end
local agent = ARGV[2]
redis.call('HSET', KEYS[2], 'workspace', ARGV[3], 'key', ARGV[4])
if use(KEYS[1], KEYS[2], ARGV[1], agent, now, ARGV[9]) then
  redis.call('HSET', KEYS[2], 'owner:' .. agent, ARGV[5], 'by:' .. agent, ARGV[8])
  if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[2], 'cwd:' .. agent, ARGV[6])
    if KEYS[3] ~= KEYS[2] then
      redis.call('HSET', KEYS[3], ARGV[7], '1')
      redis.call('EXPIRE', KEYS[3], ARGV[9])
    end
  end
end
local is_ours = redis.call('HGET', KEYS[2], 'by:' .. agent) == ARGV[8]
return {is_ours and 'spawned' or 'reused', redis.call('HGET', KEYS[2], 'cwd:' .. agent) or ''}
