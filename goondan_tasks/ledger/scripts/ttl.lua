-- How long the keys live that belong to many calls; this is put before every script that adds to one.
local SPARE_SECONDS = 60 -- so that only one call in a while has to write it

-- Keep a key for `ttl` seconds at least. Never less than it has: that may be for a call that waits for long.
local function keep_for(key, ttl)
  if redis.call('TTL', key) < tonumber(ttl) then redis.call('EXPIRE', key, ttl + SPARE_SECONDS) end
end
