-- Keep a request to a model, in front of the call that sends it, and forget those that were answered.
-- KEYS  request, stream of the Turn's events, what the Turn asks (or the request), then answered requests
-- ARGV  ttl (s), request ('' = the one that is kept), its place in what the Turn asks ('' = none), what is asked there, ttl
--       of that (s)
-- Returns whether there is the stream, 1 or 0
if ARGV[2] == '' then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[1])
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[3], ARGV[4])
  redis.call('EXPIRE', KEYS[3], ARGV[5])
end
if KEYS[4] then redis.call('UNLINK', unpack(KEYS, 4)) end
return redis.call('EXISTS', KEYS[2])
