-- Write fields of a Connection, such as its cursor, if this token was the last to hold its lease.
-- KEYS  connection
-- ARGV  token, TTL (s), the field that counts or '', then fields and values, of which 'now' is the time (ms)
-- Returns 1, or 0 if another token has held it since, or it was given back.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- a lease that is over is this token's until another one takes it; without since, Redis came back empty
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] and redis.call('HEXISTS', KEYS[1], 'since') == 1 then return 0 end
if ARGV[3] ~= '' then redis.call('HINCRBY', KEYS[1], ARGV[3], 1) end
for at = 4, #ARGV, 2 do
  local value = ARGV[at + 1]
  if value == 'now' then value = now end
  redis.call('HSET', KEYS[1], ARGV[at], value)
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
