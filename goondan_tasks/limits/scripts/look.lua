-- Check the wait queues that are due, and admit the calls that no longer have to wait. If the keys of a limit are
-- damaged, it is checked again later; the others are checked anyway.
for _, name in ipairs(redis.call('ZRANGE', look_times, '-inf', now, 'BYSCORE', 'LIMIT', 0, 20)) do
  if not pcall(admit_waiting, name) then redis.call('ZADD', look_times, now + pause, name) end
end
return answer('looked')
