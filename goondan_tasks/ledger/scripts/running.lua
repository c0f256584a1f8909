-- The runs of a schedule that have not ended. This is put before the scripts that look at them.
local MOST_LOOKED_AT = 100

-- Forget the runs that have ended, and note how the last of them did; return whether one of the others is open.
local function note_ended(schedule, runs, ns)
  local is_open = false
  for _, id in ipairs(redis.pcall('ZRANGE', runs, 0, MOST_LOOKED_AT - 1)) do
    local call = redis.pcall('HMGET', ns .. 'call:' .. id, 'status', 'outcome')
    local status = call[1]
    if status == 'queued' or status == 'running' or status == 'pending' or status == 'scheduled' then
      is_open = true
    else
      local outcome, text = call[2], ''
      if outcome == 'error' then
        local is_read, result = pcall(cjson.decode, redis.call('HGET', ns .. 'call:' .. id, 'result') or '')
        local failure = is_read and type(result) == 'table' and result.error
        if type(failure) == 'table' then
          text = tostring(failure.code) .. ': ' .. string.sub(tostring(failure.message), 1, 500)
        end
      end
      if outcome then redis.call('HSET', schedule, 'lastOutcome', outcome, 'lastError', text) end
      redis.call('ZREM', runs, id)
    end
  end
  return is_open
end
