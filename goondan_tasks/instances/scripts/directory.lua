-- What the scripts of instances share. The hash of a directory has these fields, each agent's with its name:
--   key, workspace     as they were given
--   created:<agent>    ms
--   used:<agent>       ms
--   owner:<agent>      JSON [agent, instance key] of its spawner
--   by:<agent>         the request that spawned it
--   cwd:<agent>        its workdir, a path from the workspace's instances; none: the directory's own
--   root:<agent>       the state root in which it was last opened
--   guest:<directory>@<agent>   another instance, whose workdir lies in this directory
--   retiring           'token ms': a deletion holds the directory until then
--   aside              tokens of deletions that were left half-done: files may stand aside under these
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- How many ms a deletion still holds the directory; 0 if none does. One that has left it half-done lets go.
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

-- Register an agent's use of an instance; returns whether it is the first.
local function use(instances, key, directory, agent, now, ttl)
  local is_new = redis.call('HSETNX', key, 'created:' .. agent, string.format('%d', now)) == 1
  redis.call('HSET', key, 'used:' .. agent, string.format('%d', now))
  redis.call('EXPIRE', key, ttl)
  redis.call('ZADD', instances, now, directory)
  redis.call('ZREMRANGEBYSCORE', instances, '-inf', now - ttl * 1000)
  redis.call('EXPIRE', instances, ttl)
  return is_new
end
