-- Acknowledge finished messages and reserve new ones: a message is never outside its queue, the in-flight index
-- and the ledger at the same time.
-- KEYS  in-flight hash, in-flight index, then queue and wake-up key of each queue
-- ARGV  how many to reserve, how many beyond that (of which half of a queue is left for other workers),
--       '1' if only events, and calls that `claim_on_reserve` claims: the first other message stays, and ends
--       this; tag prefix, the argument of `claim_on_reserve`, how many acknowledged tags, those tags, then the terms
--       of each queue
-- Returns {numbers of the emptied queues, {tag, number of its queue, message, claim, ...}}; of a claimed call the
-- message is false: the claim has taken its place.
-- Put before this: `local function claim_on_reserve(queue, message, tag, argument, terms)`, which returns a claim or
-- false, and `local function end_claims()`, which is called once behind the last claim.
-- If a claim fails, say at the record of another version, the message stays in flight until that is overdue, and the
-- reason takes the place of the claim: what was taken out of the queues before must not be lost with the script.
local wanted, extra, is_choosy = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local prefix, acked = ARGV[4], tonumber(ARGV[6])
for first = 7, 6 + acked, 1000 do
  local last = math.min(first + 999, 6 + acked)
  redis.call('HDEL', KEYS[1], unpack(ARGV, first, last))
  redis.call('ZREM', KEYS[2], unpack(ARGV, first, last))
end
local emptied, taken, copied, scores = {}, {}, {}, {}
for place = 3, #KEYS, 2 do
  local queue, wake_up, terms = KEYS[place], KEYS[place + 1], ARGV[7 + acked + (place - 3) / 2]
  local left = redis.call('LLEN', queue)
  local most = math.max(wanted, math.min(wanted + extra, #taken / 4 + math.ceil(left / 2)))
  local messages = left > 0 and most > #taken / 4 and redis.call('RPOP', queue, most - #taken / 4) or {}
  for _, message in ipairs(messages) do
    local tag = prefix .. string.format('%03d', #taken / 4)
    local is_sound, claim = pcall(claim_on_reserve, queue, message, tag, ARGV[5], terms)
    if not is_sound then claim = type(claim) == 'table' and claim.err or tostring(claim) end
    if is_choosy and not claim and string.sub(queue, -7) ~= '.events' then
      redis.call('RPUSH', queue, message)
      end_claims()
      return {emptied, taken}
    end
    if not (is_sound and claim) then
      copied[#copied + 1], copied[#copied + 2] = tag, queue .. '\n' .. message
    end
    local last = #taken
    taken[last + 1], taken[last + 2], taken[last + 3], taken[last + 4] =
      tag, (place - 3) / 2, not claim and message, claim
  end
  if left <= #messages then
    emptied[#emptied + 1] = (place - 3) / 2
    redis.call('DEL', wake_up) -- it would wake a worker for nothing
  elseif redis.call('LLEN', wake_up) == 0 then
    redis.call('LPUSH', wake_up, '1') -- one push wakes one worker: a worker that leaves messages behind wakes the next
  end
end
end_claims()
if #copied > 0 then
  redis.call('HSET', KEYS[1], unpack(copied))
  local time = redis.call('TIME')
  for at = 1, #copied, 2 do scores[at], scores[at + 1] = time[1] + time[2] / 1000000, copied[at] end
  redis.call('ZADD', KEYS[2], unpack(scores))
end
return {emptied, taken}
