-- Find out which calls are cancelled.
-- KEYS  call...
-- ARGV  the id of each
-- Returns the ids of the cancelled ones (a damaged record is not), regardless of their claims: a worker that has lost
-- its claim must stop, too.
local marked = {}
for i, key in ipairs(KEYS) do
  if redis.pcall('HEXISTS', key, 'cancelled') == 1 then marked[#marked + 1] = ARGV[i] end
end
return marked
