-- The indexes of traces; submit.lua, claim.lua and others have this before them, and keeping.lua before it.
-- Put a call into each index of `indexes`: keys, separated by spaces, or nil for a call that stands alone.
local function index_trace(indexes, id, now, ttl)
  for key in string.gmatch(indexes or '', '%S+') do
    redis.call('ZADD', key, now, id)
    redis.call('ZREMRANGEBYRANK', key, 0, -50001)
    keep_for(key, ttl)
  end
end
