-- Count the start of a call's handler for its rates, in place of the reservation that it got when it was admitted.
-- Each run counts, also the next one of a call that has failed.
-- ARGV  (after those of permits.lua) id, limits, when it was admitted (ms)
local id, since = ARGV[10], tonumber(ARGV[12])
for _, limit in ipairs(limits_of(ARGV[11])) do
  if limit.kind == 'rate' then
    local key = holders .. limit.name
    if tonumber(redis.call('ZSCORE', key, id) or 0) == RESERVED + since then redis.call('ZREM', key, id) end
    redis.call('ZADD', key, 'NX', now, id .. ' ' .. since)
    keep(key)
    if redis.call('EXISTS', wait_queues .. limit.name) == 1 then
      redis.call('ZADD', look_times, 'LT', look_time(limit), limit.name)
    end
  end
end
return answer('begun')
