-- Limits. This is put before the scripts that ask for permits or release them.
--
-- A limit is a line of text: kind, most, period (ms), digest, name.
--   seats  at most so many calls hold a permit at a time (maxConcurrency, serial)
--   rate   at most so many calls start in any period (rateLimit)
--   tokens as long as the answers of a Model have used so many tokens in the period, none starts (tokensPerMinute); the name
--          is that of the hash in which they are counted: slot of 10 s -> tokens
--   key    calls with the same idempotencyKey: one runs, the others wait for its result and share it; in place of the
--          period, 1 if the call is a replay, which shares no unknown outcome
--   paused an operator has paused the tool: no call passes while the hash of pauses has it
-- The record of a call keeps the limits that it has passed last, in `permits`: whatever ends its run releases them.
-- A rate counts starts, which are members of their own in its `holders`. A call that a worker has received and whose
-- start is not counted yet has a reservation: it counts, and its score is RESERVED + the time of its admission.
-- A call that was admitted from a wait queue, and that no worker has received yet, holds its permit with a negative
-- time, or with the time itself for a rate. The call's record decides whether it still holds the permit: the permit
-- is free again if the call has ended,
-- or was not claimed within a lease (after it was admitted or queued again).
--
-- Records of other calls are read with pcall: one that is damaged, or whose deadline cannot be read, counts as a call
-- that has ended. Another program may also have written a time, or a score: one that is further ahead than any of ours
-- counts as long past.

-- Open the limits, for one script. What it returns is described at its end.
-- terms  lease (ms), time between two checks of a wait queue (ms), TTL (s) and namespace, separated by spaces
-- now    ms
local function open_limits(terms, now)
  local MOST_AT_ONCE = 100
  -- more than any time in ms, and exact in 14 digits
  local RESERVED = 1e13
  -- how soon more calls of a tool that was resumed are admitted, in ms
  local SOON = 50
  -- the slots in which tokens are counted, in ms, and more than an answer can have
  local SLOT, TOO_MANY = 10000, 1e9
  local lease, pause, ttl, ns = string.match(terms, '^(%d+) (%d+) (%d+) (.*)$')
  lease, pause, ttl = tonumber(lease), tonumber(pause), tonumber(ttl)
  local calls, states, holders = ns .. 'call:', ns .. 'limit:', ns .. 'holders:'
  local look_times, wait_queues, waiters, waiting = ns .. 'limits', ns .. 'line:', ns .. 'waiter:', ns .. 'waiting:'
  local turns = {}
  -- the calls that this script admits, of each wait queue, and the queues that are empty then
  local leaving, emptied = {}, {}

  -- Keep a key for as long as the record of the call that it is about, if it is about one.
  local function keep(key, id)
    local least = id and math.max(ttl, redis.call('TTL', calls .. id)) or ttl
    if redis.call('TTL', key) < least then redis.call('EXPIRE', key, least) end
  end

  local function limits_of(text)
    local limits = {}
    for kind, most, period, digest, name in string.gmatch(text, '(%S+) (%d+) (%d+) (%S+) (%S+)') do
      limits[#limits + 1] = {kind = kind, most = tonumber(most), period = tonumber(period),
        digest = digest, name = name}
    end
    return limits
  end

  -- Return how many calls of a wait queue this script admits. They are its first ones until their messages are pushed.
  local function count_leaving(name)
    return leaving[name] and leaving[name].count or 0
  end

  -- Return the first call of a wait queue that this script does not admit, and since when it waits.
  local function head_of(name)
    local found = redis.call('ZRANGE', wait_queues .. name, 0, count_leaving(name), 'WITHSCORES')
    for i = 1, #found, 2 do
      if not (leaving[name] and leaving[name].calls[found[i]]) then return found[i], tonumber(found[i + 1]) end
    end
  end

  -- Return whether an earlier call waits for the limit.
  local function has_earlier(name, id, at)
    local head, since = head_of(name)
    return head and head ~= id and since <= at
  end

  local function put_in_wait_queue(name, id, at, agent)
    redis.call('ZADD', look_times, 'LT', now + pause, name) -- first: nobody would look after the call
    redis.call('ZADD', wait_queues .. name, at, id)
    redis.call('HSET', waiters .. id, 'line', name)
    redis.call('HSET', calls .. id, 'waiting', name)
    redis.call('ZADD', waiting .. agent, at, id)
    for _, key in ipairs({wait_queues .. name, waiters .. id, waiting .. agent, look_times}) do keep(key, id) end
  end

  -- Remove the call from its wait queue. Its record still says that it waited.
  local function take_out(id)
    local waiter = redis.pcall('HMGET', waiters .. id, 'line', 'agent')
    if not waiter[1] then return end
    redis.pcall('ZREM', waiting .. (waiter[2] or ''), id)
    redis.pcall('ZREM', wait_queues .. waiter[1], id) -- until then a look finds the call here
    redis.call('DEL', waiters .. id)
  end

  -- Return the wait queue that has the call and its message, if there is one.
  local function wait_queue_of(id)
    local waiter = redis.pcall('HMGET', waiters .. id, 'line', 'message')
    local name = waiter[2] and waiter[1]
    return name and type(redis.pcall('ZSCORE', wait_queues .. name, id)) == 'string' and name
  end

  -- Put a call back into the wait queue if its message was sent by other means and may never reach a worker.
  local function wait_again(name, id)
    local waiter = redis.pcall('HMGET', waiters .. id, 'at', 'agent')
    if waiter[1] and waiter[2] then pcall(put_in_wait_queue, name, id, waiter[1], waiter[2]) end
  end

  -- Free the permits of calls that no longer run; of a rate, the reservations of those that will not start.
  local function free_dead_permits(name, kind)
    local since_look = now - (tonumber(redis.call('HGET', states .. name, 'looked')) or 0)
    if since_look >= 0 and since_look < pause / 2 then return end
    redis.call('HSET', states .. name, 'looked', now)
    keep(states .. name)
    local least = kind == 'rate' and RESERVED or '-inf'
    local found = redis.call('ZRANGE', holders .. name, least, '+inf', 'BYSCORE', 'WITHSCORES')
    for i = 1, #found, 2 do
      local id, since = found[i], math.abs(tonumber(found[i + 1])) % RESERVED
      if not (since <= now + lease) then since = 0 end
      local record = redis.pcall('HMGET', calls .. id, 'status', 'releasedAt')
      local status = record[1]
      if status == 'queued' and math.max(since, tonumber(record[2]) or 0) < now - lease then
        redis.call('ZREM', holders .. name, id)
        wait_again(name, id)
      elseif status ~= 'queued' and status ~= 'running' then
        redis.call('ZREM', holders .. name, id)
      end
    end
  end

  -- A result is shared if it is ok, or if it is unknown whether the call took effect.
  local function is_shared(owner, with_unknown)
    local outcome, result = unpack(redis.call('HMGET', calls .. owner, 'outcome', 'result'))
    if not (outcome and result) then return false end
    local is_unknown = string.find(result, '"code":"E_TOOL_OUTCOME_UNKNOWN"', 1, true) ~= nil
    return outcome == 'ok' or with_unknown and is_unknown
  end

  local function check_key(limit, id, at)
    local state = redis.call('HMGET', states .. limit.name, 'owner', 'digest')
    local owner = state[1]
    if owner == id then return end
    local status = owner and redis.pcall('HGET', calls .. owner, 'status')
    if type(status) == 'table' then return 'share', owner end -- its record is damaged, so it may have run: this must not run
    -- an owner that is scheduled waits for its next run
    local is_under_way = status == 'queued' or status == 'running' or status == 'pending' or status == 'scheduled'
    if is_under_way or (status and is_shared(owner, limit.period == 0)) then
      if state[2] ~= limit.digest then return 'conflict', owner end
      if is_under_way then return 'wait' end
      return 'share', owner
    end
    if has_earlier(limit.name, id, at) then return 'wait' end
  end

  local PAUSE = 'paused:'

  local function is_pause(name)
    return string.sub(name, 1, #PAUSE) == PAUSE
  end

  -- If another program has overwritten the hash, nothing is paused.
  local function is_paused(name)
    return redis.pcall('HEXISTS', ns .. 'paused', string.sub(name, #PAUSE + 1)) == 1
  end

  -- Any number of calls may have waited for the end of a pause. They go to the front of the queue in parts, so that they
  -- keep their order there.
  local function is_full(queue)
    local message = redis.call('LINDEX', queue, -MOST_AT_ONCE)
    return message and string.byte(message) == 32
  end

  local function check_rate(limit, id)
    local key = holders .. limit.name
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now - limit.period)
    redis.call('ZREMRANGEBYSCORE', key, '(' .. now + limit.period, '(' .. RESERVED)
    local own = redis.call('ZSCORE', key, id) and 1 or 0
    if redis.call('ZCARD', key) - own >= limit.most then free_dead_permits(limit.name, limit.kind) end
    if redis.call('ZCARD', key) - own >= limit.most then return 'wait' end
  end

  -- The time when fewer tokens than the limit count, in ms, if no more are used. What another program has written, and no
  -- answer can have used, counts as none.
  local function tokens_time(limit)
    local slot, slots = math.floor(now / SLOT), {}
    for i = 1, limit.period / SLOT do slots[i] = slot + 1 - i end -- the latest first
    local used, sum = redis.pcall('HMGET', ns .. limit.name, unpack(slots)), 0
    for i = 1, #slots do
      local tokens = tonumber(used[i] or 0) or 0
      if tokens >= 0 and tokens <= TOO_MANY then sum = sum + tokens end
      if sum >= limit.most then return slots[i] * SLOT + limit.period end
    end
    return now
  end

  -- Free the permit of a later call that no worker has received yet; that call waits again.
  local function is_taken_over(name, at)
    local last = redis.call('ZRANGE', holders .. name, 0, 0, 'WITHSCORES')
    if not last[1] or tonumber(last[2]) >= 0 then return false end
    local queued = redis.pcall('HGET', calls .. last[1], 'queuedAt')
    if type(queued) == 'string' and (tonumber(queued) or now) <= at then return false end
    redis.call('ZREM', holders .. name, last[1])
    wait_again(name, last[1])
    return true
  end

  -- Return the word for a call at a limit, nothing if the call may pass.
  local function check(limit, id, at, is_met)
    if limit.kind == 'key' then return check_key(limit, id, at) end
    if limit.kind == 'paused' then
      return (is_paused(limit.name) or has_earlier(limit.name, id, at)) and 'wait' or nil
    end
    if limit.kind == 'tokens' then
      return (tokens_time(limit) > now or has_earlier(limit.name, id, at)) and 'wait' or nil
    end
    local key = holders .. limit.name
    local is_holder = redis.call('ZSCORE', key, id)
    local is_permit = limit.kind == 'seats'
    if is_permit and is_holder then return end
    if is_permit and redis.call('ZCARD', key) >= limit.most then free_dead_permits(limit.name, limit.kind) end
    if not is_holder and has_earlier(limit.name, id, at) then return 'wait' end
    if not is_permit then return check_rate(limit, id) end
    if redis.call('ZCARD', key) < limit.most then return end
    if not (is_met and is_taken_over(limit.name, at)) then return 'wait' end
  end

  -- Pass all limits or none. `is_met`: a worker has received the call; otherwise it comes from a wait queue.
  local function try(limits, id, at, is_met)
    for _, limit in ipairs(limits) do
      local word, owner = check(limit, id, at, is_met)
      if word then return word, limit, owner end
    end
    for _, limit in ipairs(limits) do
      if limit.kind == 'key' then
        redis.call('HSET', states .. limit.name, 'owner', id, 'digest', limit.digest)
        keep(states .. limit.name, id)
      elseif limit.kind == 'seats' or limit.kind == 'rate' then
        local since = is_met and now or -now
        if limit.kind == 'rate' then since = is_met and RESERVED + now or now end
        redis.call('ZADD', holders .. limit.name, since, id)
        keep(holders .. limit.name, id)
      end
    end
    return 'go'
  end

  -- The earliest time when the call at this rank of a wait queue may pass the rate, in ms; that of a reservation may have
  -- passed, since its call may start at any time after its admission.
  local function rate_time(limit, rank)
    local key, round = holders .. limit.name, math.floor(rank / limit.most)
    local place = rank % limit.most - limit.most
    local mark = redis.call('ZRANGE', key, place, place, 'WITHSCORES')
    return (mark[2] and math.min(tonumber(mark[2]) % RESERVED, now) + limit.period or now) + round * limit.period
  end

  local function look_time(limit)
    local at = limit.kind == 'rate' and rate_time(limit, 0) or limit.kind == 'tokens' and tokens_time(limit) or 0
    return at > now and math.min(at, now + pause) or now + pause
  end

  -- Admit a call: its message goes to the front of its queue. It leaves its wait queue when that has the message.
  local function give_turn(name, id, waiter, agent)
    redis.call('HSET', calls .. id, 'permits', waiter[1])
    local left, one = leaving[name] or {count = 0, calls = {}}, {agent = agent}
    leaving[name], left.count, left.calls[id] = left, left.count + 1, one
    local turn = turns[waiter[3]] or {wake_up = waiter[4], messages = {}, calls = {}}
    turns[waiter[3]] = turn
    turn.messages[#turn.messages + 1], turn.calls[#turn.calls + 1] = waiter[2], one
  end

  -- Admit as many calls of a wait queue as fit, in order. A call that another limit stops moves to that limit's queue.
  local function admit_waiting(name)
    for _ = 1, MOST_AT_ONCE do
      local id, at = head_of(name)
      if not id then
        emptied[#emptied + 1] = name
        return
      end
      local waiter = redis.pcall('HMGET', waiters .. id, 'gates', 'message', 'queue', 'bell', 'agent')
      local record = redis.pcall('HMGET', calls .. id, 'status', 'deadline')
      local is_sound = waiter[1] and waiter[2] and waiter[3] and waiter[4] and waiter[5]
      if record[1] ~= 'queued' or (tonumber(record[2]) or 0) <= now or not is_sound then
        take_out(id)
        redis.call('ZREM', wait_queues .. name, id)
      else
        if is_pause(name) and not is_paused(name) and is_full(waiter[3]) then
          redis.call('ZADD', look_times, now + SOON, name)
          return
        end
        local word, limit = try(limits_of(waiter[1]), id, at, false)
        if word == 'wait' and limit.name == name then
          redis.call('ZADD', look_times, look_time(limit), name)
          return
        end
        if word == 'wait' then
          put_in_wait_queue(limit.name, id, at, waiter[5])
          redis.call('ZREM', wait_queues .. name, id)
          redis.call('ZADD', look_times, 'LT', look_time(limit), limit.name)
        else
          give_turn(name, id, waiter, waiter[5])
        end
      end
    end
    redis.call('ZADD', look_times, now, name)
  end

  -- Push messages to the front of a queue, behind those of calls that were admitted earlier: these begin with a space,
  -- which JSON allows. Each message is written to its new place before another one takes its old place. Returns whether
  -- the queue is sound.
  local function push(queue, messages)
    local earlier = redis.pcall('LRANGE', queue, -MOST_AT_ONCE, -1)
    if earlier.err then return false end
    local first = #earlier
    while first > 0 and string.byte(earlier[first]) == 32 do first = first - 1 end
    local front, behind = {}, #earlier - first -- in the order of the list: the next message is its last
    for i = #messages, 1, -1 do front[#front + 1] = messages[i] end
    for i = first + 1, #earlier do front[#front + 1] = earlier[i] end
    redis.call('RPUSH', queue, unpack(front, behind + 1))
    for i = behind, 1, -1 do redis.call('LSET', queue, i - #front - 1, front[i]) end
    return true
  end

  -- Take an admitted call out of its wait queue; if its own queue is damaged, it stays there.
  local function take_leave(name, id, one)
    if one.stays then
      redis.call('ZADD', look_times, now + pause, name)
      return
    end
    redis.call('ZREM', wait_queues .. name, id)
    redis.call('ZREM', waiting .. one.agent, id)
    redis.call('HDEL', calls .. id, 'waiting')
    redis.call('DEL', waiters .. id)
  end

  -- Push the messages of the calls that are admitted, and then take these out of their wait queues.
  local function push_turns()
    for queue, turn in pairs(turns) do
      local is_pushed = push(queue, turn.messages)
      for _, one in ipairs(turn.calls) do one.stays = not is_pushed end
      if is_pushed and redis.pcall('LLEN', turn.wake_up) == 0 then redis.call('LPUSH', turn.wake_up, '1') end
    end
    for name, left in pairs(leaving) do
      for id, one in pairs(left.calls) do take_leave(name, id, one) end
    end
    for _, name in ipairs(emptied) do
      if redis.call('EXISTS', wait_queues .. name) == 0 then redis.call('ZREM', look_times, name) end
    end
  end

  -- Release what a call holds that is not admitted now; returns the limits that others may pass now. A call that has run
  -- keeps its key: the run may have taken effect, and another call with the key would repeat that.
  local function free_own(limits, id, has_run)
    local freed = {}
    for _, held in ipairs(limits) do
      if held.kind == 'key' then
        if not has_run and redis.call('HGET', states .. held.name, 'owner') == id then
          redis.call('HDEL', states .. held.name, 'owner')
          freed[#freed + 1] = held.name
        end
      elseif redis.call('ZREM', holders .. held.name, id) == 1 then
        freed[#freed + 1] = held.name
      end
    end
    return freed
  end

  -- Let a call wait for a limit. Returns 'wait', or 'late' if it is known that it would be admitted only after its deadline.
  local function wait_for(limit, call)
    local id = call.id
    redis.call('HSET', states .. limit.name, 'most', limit.most, 'period', limit.period)
    keep(states .. limit.name, id)
    redis.call('HSET', waiters .. id, 'at', call.at, 'agent', call.agent, 'queue', call.queue,
      'bell', call.wake_up, 'gates', call.limits, 'message', call.message)
    put_in_wait_queue(limit.name, id, call.at, call.agent)
    local at = limit.kind == 'tokens' and tokens_time(limit) or 0
    if limit.kind == 'rate' then
      at = rate_time(limit, redis.call('ZRANK', wait_queues .. limit.name, id) - count_leaving(limit.name))
    end
    if at < call.deadline then return 'wait' end
    take_out(id) -- at its deadline it would end
    return 'late'
  end

  -- Ask whether a call that a worker has received may run; if not, it enters a wait queue. It is harmless to ask twice.
  -- call  id, at (when it was queued, ms), deadline (ms), limits (text), agent, queue, wake_up (its key), message (to push
  --       when it is admitted), waits (whether it may be in a wait queue), has_run (so that it
  --       keeps its key), ttl (s, or nothing), on_wait (what is called once it is in a wait queue, or nothing)
  -- Returns a word and what it is about:
  --   go        it may run; leave releases what it holds
  --   wait      it is in the wait queue of that limit
  --   late      that limit would admit it only after its deadline
  --   share     that call, with the same idempotencyKey, has a result for both
  --   conflict  that call has the same idempotencyKey and other arguments
  local function ask(call)
    ttl = math.max(ttl, call.ttl or 0)
    local limits = limits_of(call.limits)
    if call.waits then take_out(call.id) end
    local word, limit, owner = try(limits, call.id, call.at, true)
    if word == 'go' then
      if call.waits then redis.call('HDEL', calls .. call.id, 'waiting') end
      return word
    end
    local freed = free_own(limits, call.id, call.has_run) -- it may have been admitted before
    if word == 'wait' then
      word = wait_for(limit, call)
      if word == 'wait' and call.on_wait then call.on_wait() end
      admit_waiting(limit.name)
    end
    for _, name in ipairs(freed) do admit_waiting(name) end
    return word, owner or limit.name
  end

  -- Let a claimed call hold its idempotencyKey; returns whether that is free.
  local function hold_key(id, at, text)
    return try(limits_of(text), id, at, true) == 'go'
  end

  -- Count the start of a run for a rate, in place of its reservation.
  local function count_start(limit, id, token, is_lost)
    local key = holders .. limit.name
    redis.call('ZADD', key, 'NX', now, id .. ' ' .. token)
    if not is_lost then redis.call('ZREM', key, id) end
    keep(key)
    if redis.call('EXISTS', wait_queues .. limit.name) == 1 then
      redis.call('ZADD', look_times, 'LT', look_time(limit), limit.name)
    end
  end

  -- Count the start of a run for its rates now. Else it is counted when the run ends: until then its reservation counts.
  -- If its claim is_lost, the reservation is that of another run.
  local function begin(id, token, text, is_lost)
    for _, limit in ipairs(limits_of(text)) do
      if limit.kind == 'rate' and (is_lost or redis.call('ZSCORE', holders .. limit.name, id)) then
        count_start(limit, id, token, is_lost)
      end
    end
  end

  -- Release the permit of one limit.
  local function release(limit, run)
    local id, key, state = run.id, holders .. limit.name, states .. limit.name
    if limit.kind == 'paused' or limit.kind == 'tokens' then return end
    if limit.kind == 'key' and run.gives_up_key then
      if redis.call('HGET', state, 'owner') == id then redis.call('HDEL', state, 'owner') end
      return
    end
    if limit.kind == 'key' then -- calls with the same key wait for the final result of a pending one
      local least = run.pending_ttl and math.max(ttl, run.pending_ttl) or 0
      if redis.call('TTL', state) < least then redis.call('EXPIRE', state, least) end
      return
    end
    local held = redis.call('ZSCORE', key, id)
    if not held then return end
    if limit.kind == 'rate' and run.has_begun then return count_start(limit, id, run.token) end
    redis.call('ZREM', key, id)
    if limit.kind == 'rate' then return end
    local last = now - math.abs(tonumber(held))
    local took = tonumber(redis.call('HGET', state, 'took')) or last
    redis.call('HSET', state, 'took', math.floor(took * 0.8 + last * 0.2))
    keep(state)
  end

  -- Release what a run holds that has ended. `close` admits the next calls: these must not find that a run has ended whose
  -- start is not counted. A limit whose keys are damaged is left to a look. This is harmless twice, and comes before the
  -- record of the run forgets its limits: if the script is broken off between, another one releases them.
  -- run  id, token, limits (text), has_begun (whether it counts for a rate), pending_ttl (of its record, in s, if it is
  --      pending from now on), gives_up_key (whether it must be approved, and has never run)
  local left = {}
  local function leave(run)
    for _, limit in ipairs(limits_of(run.limits)) do
      pcall(release, limit, run)
      if not left[limit.name] then
        left[#left + 1], left[limit.name] = limit.name, true
        redis.pcall('ZADD', look_times, 'XX', 'LT', now, limit.name) -- a look admits them if this is broken off
      end
    end
  end

  -- Check the wait queues that are due (wake.lua). If the keys of a limit are damaged, it is checked again later; the others
  -- are checked anyway.
  local function look()
    for _, range in ipairs({{'-inf', now}, {'(' .. now + 2 * pause, '+inf'}}) do
      for _, name in ipairs(redis.call('ZRANGE', look_times, range[1], range[2], 'BYSCORE', 'LIMIT', 0, 20)) do
        if not pcall(admit_waiting, name) then redis.call('ZADD', look_times, now + pause, name) end
      end
    end
  end

  -- Admit the calls behind those that have left, and push the messages of all that were admitted: the last thing that the
  -- script does with their queues.
  local function close()
    for _, name in ipairs(left) do pcall(admit_waiting, name) end
    push_turns()
  end

  return {
    ask = ask, hold_key = hold_key, begin = begin, leave = leave, look = look, take_out = take_out, close = close,
    wait_queue_of = wait_queue_of,
  }
end
