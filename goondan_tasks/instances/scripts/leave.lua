-- Remove one agent's part of an instance that other agents share, and end the deletion's hold.
-- KEYS  instances, instance
-- ARGV  directory, agent, token
-- Returns 1; 0 if the hold was lost, the agent has no part in it, or no other agent has: then nothing is changed. If
-- both the hold and the part are already gone, it returns 1: the answer to an earlier request may have been lost.
local is_part, others = false, false
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  local agent = string.match(field, '^created:(.+)$')
  is_part = is_part or agent == ARGV[2]
  others = others or (agent and agent ~= ARGV[2])
end
local mark = redis.call('HGET', KEYS[2], 'retiring')
if not mark and not is_part then return 1 end
if not mark or string.match(mark, '^%S+') ~= ARGV[3] then return 0 end
if not is_part or not others then return 0 end
for _, name in ipairs({'created', 'used', 'owner', 'by', 'cwd', 'root'}) do
  redis.call('HDEL', KEYS[2], name .. ':' .. ARGV[2])
end
redis.call('HDEL', KEYS[2], 'retiring')
return 1
