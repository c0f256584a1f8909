-- Shared by what stores grants.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A record that is stored, or read after long, is kept for `ttl` ms from now; so is the list that names it.
local function keep(grant, grants, ttl)
  redis.call('PEXPIRE', grant, ttl)
  redis.call('PEXPIRE', grants, ttl)
end

local function put_grant(grant, grants, name, document, ttl)
  redis.call('HSET', grant, 'document', document)
  redis.call('HINCRBY', grant, 'generation', 1)
  redis.call('ZADD', grants, now_ms(), name)
  keep(grant, grants, ttl)
end

local function is_same(grant, document)
  return redis.call('HGET', grant, 'document') == document and 1 or 0
end
