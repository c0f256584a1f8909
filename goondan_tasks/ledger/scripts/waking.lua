-- Queues scheduled calls. Shared by wake.lua, run_now.lua and sweep.lua; mailboxes.lua and scheduled.lua are put before
-- this.

-- Queue a scheduled call with its message, and give an event its place in its mailbox. The message comes before the
-- status: a claim drops that of a scheduled call. Its place in `due` comes after it: if this is broken off before, the
-- call is woken again, and after it a sweep writes the deadline. Returns whether it is queued: it is not if its record or
-- mailbox is damaged. All is read before anything is pushed, or each attempt would leave a message.
local function wake(ns, due, id, now)
  local key = ns .. 'call:' .. id
  local record = redis.call('HMGET', key, 'queue', 'message', 'deadline', 'box', 'attempt')
  local has_attempt, attempt = pcall(number_in, record[5], 0)
  local has_deadline, deadline = pcall(number_in, record[3])
  local has_queue = record[1] and string.match(record[1], '^agent%.[^.]+')
  if not (has_attempt and has_deadline and has_queue and record[2]) then return false end
  local queue, wake_up, box = record[1], record[1] .. '.bell', record[4]
  if box then
    redis.pcall('LREM', ns .. 'mailbox:' .. box, 0, id) -- if this was broken off before, it has a place
    local ttl = math.max(redis.call('TTL', key), 1)
    if not put_in_mailbox(ns, box, id, now, ttl) then return false end
  end
  leave_schedule(ns, id, queue)
  redis.call(attempt == 0 and 'LPUSH' or 'RPUSH', queue, record[2]) -- the next run of a call goes to the front
  if redis.pcall('LLEN', wake_up) == 0 then redis.call('LPUSH', wake_up, '1') end
  -- a call that has run before keeps its place among those that wait for a limit
  redis.call('HSET', key, 'status', 'queued', attempt == 0 and 'queuedAt' or 'releasedAt', now)
  redis.call('ZADD', due, deadline, id)
  forget_schedule(ns, id)
  return true
end
