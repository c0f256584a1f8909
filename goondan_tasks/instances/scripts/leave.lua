-- Remove one agent's part of an instance that other agents share (directory.lua is put before this).
-- KEYS  instances, instance
-- ARGV  directory, agent
-- Returns 1; 0 if a deletion holds the directory, the agent has no part in it, or no other agent has.
local now = now_ms()
if held_for(KEYS[2], now) > 0 then return 0 end
local is_part, others = false, false
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  local agent = string.match(field, '^created:(.+)$')
  is_part = is_part or agent == ARGV[2]
  others = others or (agent and agent ~= ARGV[2])
end
if not is_part or not others then return 0 end
for _, name in ipairs({'created', 'used', 'owner', 'by', 'cwd', 'root'}) do
  redis.call('HDEL', KEYS[2], name .. ':' .. ARGV[2])
end
return 1
