-- Which of these calls are cancelled?
-- KEYS  call...
-- ARGV  the id of each
-- Returns the ids of those that are. Who holds the claim now does not matter: also a worker that has
-- lost it must stop what it runs.
local marked = {}
for i, key in ipairs(KEYS) do
  if redis.call('HEXISTS', key, 'cancelled') == 1 then marked[#marked + 1] = ARGV[i] end
end
return marked
