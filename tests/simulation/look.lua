-- Show the records of calls as conformance.py expects them, and set the virtual clock.
-- ARGV  the time (s, and us beyond), namespace, the number of queues, queues; then of each call: id, agent, '1' if its messages count
-- Returns for each call a line and, if the call has ended, its result.
local ns, count, seen = ARGV[3], tonumber(ARGV[4]), {}
local waiting, flying = {}, {}
for i = 5, 4 + count do
  for _, message in ipairs(redis.call('LRANGE', ARGV[i], 0, -1)) do
    local id = string.match(message, '"id": ?"([^"]+)"')
    if id then waiting[id] = (waiting[id] or 0) + 1 end
  end
end
for _, entry in ipairs(redis.call('HVALS', 'agent.in-flight')) do
  local id = string.match(entry, '"id": ?"([^"]+)"')
  if id then flying[id] = (flying[id] or 0) + 1 end
end
local function bit(value) return value and '1' or '0' end
local function number(value) return value and string.format('%.0f', tonumber(value)) or '' end
for i = 5 + count, #ARGV, 3 do
  local id, agent = ARGV[i], ARGV[i + 1]
  local record = redis.pcall('HMGET', ns .. 'call:' .. id, 'status', 'token', 'attempt', 'deadline',
    'verdict', 'deaths', 'completion', 'notStarted', 'worker', 'idempotent', 'cancelled', 'approval',
    'approved', 'parked', 'result', 'box', 'call')
  local due = number(redis.call('ZSCORE', ns .. 'due', id))
  local flags = bit(redis.call('ZSCORE', ns .. 'running:' .. agent, id))
    .. bit(redis.call('ZSCORE', ns .. 'pending:' .. agent, id))
    .. bit(redis.call('ZSCORE', ns .. 'approvals:' .. agent, id))
    .. bit(redis.call('ZSCORE', ns .. 'scheduled:' .. agent, id))
  local status = record[1] or ''
  local has_ended = status == 'done' or status == 'dead'
  local box = has_ended and not record[2] and record[16] -- else its handler still runs
  flags = flags .. bit(box and redis.call('LPOS', ns .. 'mailbox:' .. box, id))
  local counts = ARGV[i + 2] == '1' and (waiting[id] or 0) .. ' ' .. (flying[id] or 0) or ''
  local row = table.concat({status, record[2] or '', due, flags, counts}, '|')
  if status ~= '' and status ~= 'done' and status ~= 'dead' then
    local completion = string.match(record[7] or '', '^%S+') or ''
    local bits = bit(record[8]) .. bit(record[9]) .. bit(record[10] == '1') .. bit(record[11])
      .. bit(record[12]) .. bit(record[13]) .. bit(record[14] and ARGV[i + 2] == '1')
      .. bit(record[17] and string.find(record[17], '"asked":', 1, true))
    row = table.concat({row, number(record[3]), number(record[4]), record[5] or '',
      number(record[6] or '0'), completion, bits}, '|')
  end
  seen[#seen + 1], seen[#seen + 2] = row, has_ended and record[15] or ''
end
redis.call('HSET', 'sim:clock', 's', ARGV[1], 'us', ARGV[2])
return seen
