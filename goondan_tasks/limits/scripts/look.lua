-- Check the wait queues that are due, and admit the calls that no longer have to wait.
for _, name in ipairs(redis.call('ZRANGE', look_times, '-inf', now, 'BYSCORE', 'LIMIT', 0, 20)) do
  admit_waiting(name)
end
return answer('looked')
