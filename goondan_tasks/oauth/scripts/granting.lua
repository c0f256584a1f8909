-- Shared by the scripts that store grants.

-- Store a grant; it and the list of grants expire `ttl` ms from now.
local function put_grant(grant, grants, name, document, ttl)
  local time = redis.call('TIME')
  redis.call('HSET', grant, 'document', document)
  redis.call('HINCRBY', grant, 'generation', 1)
  redis.call('ZADD', grants, time[1] * 1000 + math.floor(time[2] / 1000), name)
  redis.call('PEXPIRE', grant, ttl)
  redis.call('PEXPIRE', grants, ttl)
end

local function is_same(grant, document)
  return redis.call('HGET', grant, 'document') == document and 1 or 0
end
