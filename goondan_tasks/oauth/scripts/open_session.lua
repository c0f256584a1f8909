-- Store a session, unless a live one has the same request: then add the resume to that one.
-- KEYS  session, sessions, sessions of the same app and subject
-- ARGV  id, document, expires at (ms), kept after that (ms), prefix of the keys of sessions,
--       request, target of the resume, resume (JSON), both '' if there is none; then the ids of unreadable live ones
-- Returns the id of the session to use; the same one if sent again.
local unreadable = {}
for i = 9, #ARGV do unreadable[ARGV[i]] = true end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf')) do
  local live = ARGV[5] .. id
  local facts = redis.pcall('HMGET', live, 'status', 'request', 'place') -- a damaged one is not used
  if facts[1] == 'pending' and facts[2] == ARGV[6] and not unreadable[id] then
    if ARGV[7] ~= '' and facts[3] ~= ARGV[7] then redis.call('HSETNX', live, 'resume:' .. ARGV[7], ARGV[8]) end
    return id
  end
end
redis.call('HSET', KEYS[1], 'document', ARGV[2], 'status', 'pending', 'reason', '', 'expires', ARGV[3],
  'request', ARGV[6], 'place', ARGV[7])
local left = math.max(1, ARGV[3] + ARGV[4] - now)
redis.call('PEXPIRE', KEYS[1], left)
for i = 2, 3 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now - ARGV[4])
  redis.call('ZADD', KEYS[i], ARGV[3], ARGV[1])
  redis.call('PEXPIRE', KEYS[i], math.max(left, redis.call('PTTL', KEYS[i])))
end
return ARGV[1]
