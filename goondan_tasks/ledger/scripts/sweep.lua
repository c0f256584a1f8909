-- Take the calls about which something must be decided: past their deadline, or their lease.
-- The caller holds their claims and must settle each one before its own lease ends.
-- After a time without sweeps Redis was away, and live workers could not renew their leases: they get
-- time for it before any call is taken for dead. A claim is spared once until it is renewed: where
-- sweeps are rare, it would be spared forever.
-- KEYS  due, last sweep
-- ARGV  token, lease ms, most calls to take, call key prefix, longest ms between two sweeps, TTL s
-- Returns a list of {id, verdict, attempt, queued at ms, call JSON, when it was suspended (ms, or nothing),
-- completion, the worker that has lost it, when that has claimed it (ms), whether it has its result};
-- verdicts: cancelled | expired | limited (it waited for a limit) | unknown | poisoned | unresolved and
-- unapproved (it was pending) (store that error), completed (store what it was completed with),
-- requeue (release with a message). A record that cannot be read has a row without its call.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
redis.call('SET', KEYS[2], now, 'EX', ARGV[6])
if now - last > tonumber(ARGV[5]) then
  for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now + ARGV[2] / 2, 'BYSCORE')) do
    local key = ARGV[4] .. id
    local claim = redis.pcall('HMGET', key, 'status', 'token', 'spared') -- it may be no record of ours
    if (claim[1] == 'running' or claim[1] == 'done') and claim[2] ~= claim[3] then
      local renewed = redis.call('ZSCORE', KEYS[1], id) - ARGV[2]
      redis.call('ZADD', KEYS[1], now + ARGV[2] / 2, id)
      redis.call('HSET', key, 'spared', claim[2], 'renewedAt', renewed)
    end
  end
end

-- Decide about one call; returns its row, or nothing if it needs none. Fails at a record of another version.
local function take(id)
  local key = ARGV[4] .. id
  local record = redis.call('HMGET', key, 'status', 'attempt', 'queuedAt', 'call', 'notStarted',
    'idempotent', 'maxAttempts', 'deaths', 'cancelled', 'waiting', 'worker', 'suspendedAt', 'completion',
    'approval', 'token', 'claimedAt')
  local status, verdict = record[1], 'requeue'
  local completion = record[13]
  -- an event that has its result was still handled, and its worker has died
  local is_left = status == 'done' and record[15]
  if status ~= 'queued' and status ~= 'running' and status ~= 'pending' and not is_left then
    if status and status ~= 'done' and status ~= 'dead' or not status and redis.call('EXISTS', key) == 1 then
      error('its status is not known')
    end
    redis.call('ZREM', KEYS[1], id)
    return nil
  end
  -- one that a sweep has taken out of the queue, and left, has no worker
  if record[9] then
    verdict = 'cancelled'
  elseif status == 'pending' then
    verdict = completion and 'completed' or record[14] and 'unapproved' or 'unresolved'
  elseif status == 'queued' or not record[11] then
    verdict = record[10] and 'limited' or 'expired'
  elseif not record[5] and record[6] ~= '1' then
    verdict = 'unknown'
  elseif number_in(record[8], 0) + (record[5] and 1 or 5) >= 5 * (record[7] or 1) then
    verdict = 'poisoned'
  end
  -- its worker died before the handler had returned, but what it has begun was completed
  if completion and (verdict == 'unknown' or verdict == 'poisoned') then verdict = 'completed' end
  local had_it = status ~= 'pending' and record[11]
  local row = {id, verdict, number_in(record[2], 0), number_in(record[3], 0), record[4], record[12], completion, had_it,
    had_it and number_in(record[16], 0), is_left and '1'}
  redis.call('HSET', key, 'status', status == 'queued' and 'running' or status, 'token', ARGV[1])
  return row
end

local taken = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], '-inf', now, 'BYSCORE', 'LIMIT', 0, ARGV[3])) do
  local is_sound, row = pcall(take, id)
  if row then
    -- one that this version cannot read is left to a process that can: others must be swept anyway
    taken[#taken + 1] = is_sound and row or {id, 'requeue', 0, 0, ''}
    redis.call('ZADD', KEYS[1], now + ARGV[2], id)
  end
end
return taken
