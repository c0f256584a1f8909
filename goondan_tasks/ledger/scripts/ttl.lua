-- Lifetimes of keys that many calls share. This is put before every script that adds to one.
local SPARE_SECONDS = 60 -- so that only one call per minute has to extend the lifetime

-- Keep a key for at least `ttl` seconds. A longer lifetime is kept: a call that waits longer may need it.
local function keep_for(key, ttl)
  if redis.call('TTL', key) < tonumber(ttl) then redis.call('EXPIRE', key, ttl + SPARE_SECONDS) end
end
