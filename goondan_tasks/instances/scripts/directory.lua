-- Shared by the scripts of instances. The hash of a directory has these fields:
--   key, workspace     of the instance
--   created:<agent>    ms
--   used:<agent>       ms
--   owner:<agent>      JSON [agent, instance key] of its spawner
--   by:<agent>         the request that spawned it
--   cwd:<agent>        its workdir, relative to the workspace's instances; by default in the directory itself
--   root:<agent>       the state root in which it was last opened
--   guest:<directory>@<agent>   another instance whose workdir is in this directory
--   retiring           'token ms': a deletion holds the directory until this time
--   aside              tokens of interrupted deletions, which may have set files aside
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return for how many ms a deletion still holds the directory, 0 if none does. An expired hold is recorded as an
-- interrupted deletion.
local function held_for(key, now)
  local mark = redis.call('HGET', key, 'retiring')
  if not mark then return 0 end
  local token, ends = string.match(mark, '^(%S+) (%d+)$')
  if tonumber(ends) > now then return tonumber(ends) - now end
  local before = redis.call('HGET', key, 'aside')
  redis.call('HSET', key, 'aside', before and before .. ' ' .. token or token)
  redis.call('HDEL', key, 'retiring')
  return 0
end

-- Register that an agent uses an instance; return whether it is the first time.
local function use(instances, key, directory, agent, now, ttl)
  local is_new = redis.call('HSETNX', key, 'created:' .. agent, string.format('%d', now)) == 1
  redis.call('HSET', key, 'used:' .. agent, string.format('%d', now))
  redis.call('EXPIRE', key, ttl)
  redis.pcall('ZADD', instances, now, directory) -- only a list: if it is damaged, the instances count all the same
  redis.pcall('ZREMRANGEBYSCORE', instances, '-inf', now - ttl * 1000)
  redis.call('EXPIRE', instances, ttl)
  return is_new
end
