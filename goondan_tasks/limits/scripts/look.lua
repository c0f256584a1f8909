-- Let in the calls whose time has come, at the limits that are due for a look.
for _, name in ipairs(redis.call('ZRANGE', look_times, '-inf', now, 'BYSCORE', 'LIMIT', 0, 20)) do
  let_in(name)
end
return answer('looked')
