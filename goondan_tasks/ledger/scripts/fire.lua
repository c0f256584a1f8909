-- Fire one slot of a schedule: accept its event or call, and go on to the next slot. Any number of workers may try: the
-- slot is compared with the stored one, so each is fired once.
-- KEYS  schedule, schedules of its owner, its runs, due, and if one is fired: calls:<agent>, queue, its wake-up key
-- ARGV  full name, digest of the schedule that the caller knows, the slot that it expects (ms, '' = a run outside the
--       slots), the slot to fire, as text ('' = none), the next slot and when it is due (ms, '' = never), how many slots
--       were missed, lifetime beyond the next slot (s), namespace, and if one is fired: those of submit.lua for one call
-- Returns a word:
--   fired    it is accepted
--   skipped  an earlier run is open, and the schedule says that it must not overlap
--   missed   nothing was to be fired: the slots are counted
--   damaged  its record or mailbox is: it is given up, and the schedule goes on
--   stale    another worker was first, or the schedule was changed, paused or removed meanwhile
-- accept.lua and running.lua are put before this.
local state = redis.call('HMGET', KEYS[1], 'digest', 'next', 'overlap') -- while it is paused, it has no next slot
local by_hand = ARGV[3] == ''
if state[1] ~= ARGV[2] or not by_hand and state[2] ~= ARGV[3] then return 'stale' end

-- A damaged count begins again: its slot has been accepted.
local function count(field, more)
  if type(redis.pcall('HINCRBY', KEYS[1], field, more)) == 'table' then redis.call('HSET', KEYS[1], field, more) end
end

local word, ns, id = 'missed', ARGV[9], ARGV[12]
local batch = open_batch(KEYS[4])
local is_open = note_ended(KEYS[1], KEYS[3], ns)
if ARGV[4] ~= '' then
  if is_open and state[3] == 'skip' and not by_hand then
    word = 'skipped'
  else
    local answer = add_call(batch, add_queue(batch, KEYS[5], KEYS[6], KEYS[7]), ns .. 'call:' .. id, {
      id = id, call = ARGV[13], digest = ARGV[14], producer = ARGV[10], deadline = ARGV[16], patience = ARGV[17], ttl = ARGV[11],
      message = ARGV[18], indexes = ARGV[19], ns = ns, box = ARGV[20] ~= '' and ARGV[20] or nil, keep = ARGV[22],
    })
    close_batch(batch)
    word = answer == 'damaged' and answer or 'fired'
    if by_hand and answer then return word end -- the same run again: its answer was lost
  end
end

-- the call is accepted first, and the index is last: if this is broken off, the slot is looked at again
local ttl = ARGV[8]
if not by_hand then ttl = ttl + math.max(0, math.ceil(((tonumber(ARGV[6]) or 0) - batch.now) / 1000)) end
if word == 'fired' then
  redis.pcall('ZADD', KEYS[3], batch.now, id)
  redis.pcall('ZREMRANGEBYRANK', KEYS[3], 0, -1001)
  keep_for(KEYS[3], ttl)
  redis.call('HSET', KEYS[1], 'lastSlot', ARGV[4], 'lastAt', batch.now, 'lastId', id)
end
if word ~= 'missed' then count(word, 1) end
if ARGV[7] ~= '0' then count('missed', ARGV[7]) end
if not by_hand then
  redis.call('HSET', KEYS[1], 'next', ARGV[5], 'at', ARGV[6])
  keep_for(KEYS[1], ttl)
  redis.call('ZADD', KEYS[2], ARGV[6] == '' and 'inf' or ARGV[6], ARGV[1])
  keep_for(KEYS[2], ttl)
end
return word
