-- The indexes of traces; submit.lua, claim.lua and others have this before them, and ttl.lua before it.
-- Add calls to an index; `ids` are scores and ids in turns.
local function add_to_trace(index, ids, ttl)
  redis.call('ZADD', index, unpack(ids))
  redis.call('ZREMRANGEBYRANK', index, 0, -50001)
  keep_for(index, ttl)
end

-- Put a call into each index of `indexes`: keys, separated by spaces, or nil for a call that stands alone.
local function index_trace(indexes, id, now, ttl)
  for index in string.gmatch(indexes or '', '%S+') do add_to_trace(index, {now, id}, ttl) end
end
