-- Release what a call holds since its admission, and admit the next ones.
-- ARGV  (after those of permits.lua) id, limits, when it was admitted (ms), '1' if its run has ended but its claim is
--       kept
local id, since, pauses = ARGV[10], tonumber(ARGV[12]), ARGV[13] == '1'
local status = redis.pcall('HGET', calls .. id, 'status') -- if it is damaged, the call has ended
local has_ended = status ~= 'queued' and status ~= 'running'
if status ~= 'queued' then take_out(id) end

-- A call that runs, or was admitted again in the meantime, holds its permit for another run than the caller's.
local function is_callers(at)
  return has_ended or ((status == 'queued' or pauses) and at == since)
end

for _, limit in ipairs(limits_of(ARGV[11])) do
  local held = limit.kind == 'seats' and redis.call('ZSCORE', holders .. limit.name, id)
  if held and is_callers(tonumber(held)) then
    redis.call('ZREM', holders .. limit.name, id)
    local last = now - math.abs(tonumber(held))
    local took = tonumber(redis.call('HGET', states .. limit.name, 'took')) or last
    redis.call('HSET', states .. limit.name, 'took', math.floor(took * 0.8 + last * 0.2))
    keep(states .. limit.name)
  end
  -- calls with the same key wait for its final result
  if limit.kind == 'key' and status == 'pending' then keep(states .. limit.name, id) end
  if limit.kind == 'rate' then -- a call that has not started, such as one that waits for an approval, does not count
    local reserved = tonumber(redis.call('ZSCORE', holders .. limit.name, id) or 0)
    if reserved > 0 and is_callers(reserved - RESERVED) then
      redis.call('ZREM', holders .. limit.name, id)
      admit_waiting(limit.name)
    end
  else
    admit_waiting(limit.name)
  end
end
return answer('left')
