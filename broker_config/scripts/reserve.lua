-- Reserve messages. At any time, a message is in its queue, in flight or claimed in
-- the ledger: it leaves its queue last, so none is lost if the script fails, for example because another program has
-- written a key.
-- KEYS  in-flight hash, in-flight index, then queue and wake-up key of each queue
-- ARGV  how many to reserve, how many more (these leave half of each queue to other workers), '1' to reserve only
--       events and calls that `claim_on_reserve` claims (the first other message stays in its queue and ends the
--       reservation), tag prefix, the argument of `claim_on_reserve`, then the terms of each queue
-- Returns {numbers of the emptied queues, {tag, number of its queue, message, claim, ...}}.
-- The message of a claimed call is false: the claim replaces it.
-- Put before this: `local function claim_on_reserve(queue, message, tag, argument, terms)`, which returns a claim or
-- false, and `local function end_claims()`, which is called once, after the last claim. It may return a function: that
-- is called last, as it may push messages.
-- If a claim fails, for example because of a record of another version, the reason replaces the claim, and the message
-- stays in flight until it is overdue: an error of the whole script would keep the others from being reserved.
-- A damaged queue counts as empty.
local wanted, extra, claimed_only = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local prefix = ARGV[4]
redis.call('HDEL', KEYS[1], '') -- a full Redis accepts all that follows a write without memory
local emptied, taken, copied, scores, lengths = {}, {}, {}, {}, {}
local is_stopped = false
for place = 3, #KEYS, 2 do
  local queue, wake_up, terms = KEYS[place], KEYS[place + 1], ARGV[6 + (place - 3) / 2]
  local left = redis.pcall('LLEN', queue)
  if type(left) ~= 'number' then left = 0 end
  local most = math.max(wanted, math.min(wanted + extra, #taken / 4 + math.ceil(left / 2)))
  local is_wanted = left > 0 and most > #taken / 4
  local messages, took = is_wanted and redis.call('LRANGE', queue, #taken / 4 - most, -1) or {}, 0
  for at = #messages, 1, -1 do
    local message = messages[at]
    local tag = prefix .. string.format('%03d', #taken / 4)
    local is_sound, claim = pcall(claim_on_reserve, queue, message, tag, ARGV[5], terms)
    if not is_sound then claim = type(claim) == 'table' and claim.err or tostring(claim) end
    if claimed_only and not claim and not string.find(queue, '^agent%..+%.events$') then
      is_stopped = true
      break
    end
    took = took + 1
    if not (is_sound and claim) then
      copied[#copied + 1], copied[#copied + 2] = tag, queue .. '\n' .. message
    end
    local last = #taken
    taken[last + 1], taken[last + 2], taken[last + 3], taken[last + 4] =
      tag, (place - 3) / 2, not claim and message, claim
  end
  if took > 0 then lengths[queue] = took end
  if is_stopped then break end
  if left <= took then
    emptied[#emptied + 1] = (place - 3) / 2
    redis.call('DEL', wake_up) -- it would wake a worker in vain
  elseif redis.pcall('LLEN', wake_up) == 0 then
    redis.call('LPUSH', wake_up, '1') -- one push wakes one worker, so a worker that leaves messages wakes the next
  end
end
local close = end_claims()
if #copied > 0 then
  local time = redis.call('TIME')
  for at = 1, #copied, 2 do scores[at], scores[at + 1] = time[1] + time[2] / 1000000, copied[at] end
  redis.call('ZADD', KEYS[2], unpack(scores))
  redis.call('HSET', KEYS[1], unpack(copied))
end
for queue, took in pairs(lengths) do redis.call('LTRIM', queue, 0, -took - 1) end
if close then close() end
return {emptied, taken}
