-- Indexes of traces. This is put before submit.lua, claim.lua and others, after ttl.lua.

-- Add calls to an index; `ids` alternates scores and ids.
local function add_to_trace(index, ids, ttl)
  redis.pcall('ZADD', index, unpack(ids)) -- only a list: if it is damaged, the calls count all the same
  redis.pcall('ZREMRANGEBYRANK', index, 0, -50001)
  keep_for(index, ttl)
end

-- Add a call to each of `indexes`: keys separated by spaces, or nil for a call that stands alone.
local function index_trace(indexes, id, now, ttl)
  for index in string.gmatch(indexes or '', '%S+') do add_to_trace(index, {now, id}, ttl) end
end
