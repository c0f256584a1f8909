-- Ask whether a call may be claimed and run now; if not, it stands in line and its message is not needed.
-- Asked again, the answer does no harm.
-- ARGV  (after those of gates.lua) id, agent, queue, its bell, gates,
--       the message that is pushed when the call is let in ('' = sent by other means)
-- Words: go        claim it; what it holds since `now`, leave.lua gives back
--        wait      it stands in line
--        late      `about`, a rate, lets it in only after its deadline
--        share     the call `about`, with the same idempotencyKey, has a result for both
--        conflict  the call `about` has the same idempotencyKey and other arguments
--        unknown   there is no record yet
local id, agent, queue, bell = ARGV[10], ARGV[11], ARGV[12], ARGV[13]
local gates = gates_of(ARGV[14])
local record = redis.call('HMGET', calls .. id, 'status', 'queuedAt', 'deadline')
if not record[1] then return answer('unknown') end
-- the claim tells what to do with such a one; it takes nothing here
if record[1] ~= 'queued' or tonumber(record[3]) <= now then return answer('go') end
local at = tonumber(record[2])
take_out(id)

local word, gate, owner = try(gates, id, at, true)
if word == 'go' then
  redis.call('HDEL', calls .. id, 'waiting')
  return answer('go')
end

-- it was let in before, but must wait again: what it holds is for others
local freed = {}
for _, held in ipairs(gates) do
  if held.kind == 'key' then
    if redis.call('HGET', states .. held.name, 'owner') == id then
      redis.call('HDEL', states .. held.name, 'owner')
      freed[#freed + 1] = held.name
    end
  elseif redis.call('ZREM', holders .. held.name, id) == 1 then
    freed[#freed + 1] = held.name
  end
end

if word == 'wait' then
  redis.call('HSET', states .. gate.name, 'most', gate.most, 'period', gate.period)
  keep(states .. gate.name)
  redis.call('HSET', waiters .. id, 'at', at, 'agent', agent, 'queue', queue,
    'bell', bell, 'gates', ARGV[14], 'message', ARGV[15])
  redis.call('EXPIRE', waiters .. id, ttl)
  put_in_line(gate.name, id, at, agent)
  if gate.kind == 'rate' then
    local rank = redis.call('ZRANK', lines .. gate.name, id)
    if rate_time(gate, rank) > tonumber(record[3]) then
      take_out(id)
      word, owner = 'late', gate.name
    end
  end
  owner = owner or gate.name
  let_in(gate.name)
end
for _, name in ipairs(freed) do let_in(name) end
return answer(word, owner)
