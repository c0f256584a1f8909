-- List an agent's recent calls that wait for a worker.
-- KEYS  calls:<agent>
-- ARGV  call key prefix, '1' to include events
-- Returns their ids, the oldest first, without cancelled ones, which sweeps end, and damaged records.
local queued = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local record = redis.pcall('HMGET', ARGV[1] .. id, 'status', 'cancelled', 'box')
  if record[1] == 'queued' and not record[2] and (ARGV[2] == '1' or not record[3]) then queued[#queued + 1] = id end
end
return queued
