-- Register that an agent is about to work in an instance (directory.lua is put before this).
-- KEYS  instances, instance
-- ARGV  directory, agent, workspace, instance key, id of the state root, TTL (s)
-- Returns {'open', its cwd or '', tokens of interrupted deletions or ''}, or {'held', ms} while a deletion holds the
-- directory.
local now = now_ms()
local held = held_for(KEYS[2], now)
if held > 0 then return {'held', held} end
redis.call('HSET', KEYS[2], 'workspace', ARGV[3], 'key', ARGV[4], 'root:' .. ARGV[2], ARGV[5])
use(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now, ARGV[6])
local cwd, aside = redis.call('HGET', KEYS[2], 'cwd:' .. ARGV[2]), redis.call('HGET', KEYS[2], 'aside')
return {'open', cwd or '', aside or ''}
