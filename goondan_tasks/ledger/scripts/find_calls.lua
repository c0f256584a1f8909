-- Look for calls in the indexes of agents, the latest first, from a place on. What is found may be more than what is
-- wanted, never less: the caller reads the records, and compares them.
-- KEYS  an index of each agent, in the order of the agents
-- ARGV  prefix of the key call; how many calls, and bytes, are looked at, and how many found, at most; the latest and the
--       earliest score; the place: the score ('' = from the first), how many of KEYS come before the agent of the call
--       looked at last, and that call's id ('' = none of that agent); then what is wanted, each '' = any: status or
--       outcome, text in the JSON of the call, the same, text in the JSON of the result, the same in lower case;
--       then texts that follow one another in the name of the tool, which begins with the first
-- Returns {how many were looked at, the place to go on from: score, number of its key (0 = all were looked at), id;
-- then the ids of those that were found}. It changes nothing.
local prefix, most, most_bytes, most_found = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local latest, earliest, from, passed, from_id = ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8]), ARGV[9]
local status, in_call, also_in_call, in_result, in_error = unpack(ARGV, 10, 14)
local PIECES = 15 -- the first text of a tool's name
local TOOL = '"toolName":"'
local reads_call = #ARGV >= PIECES or in_call ~= '' or also_in_call ~= ''
local reads_result = in_result ~= '' or in_error ~= ''
local chunk = math.max(10, math.min(200, math.floor(2 * most / #KEYS))) -- how many entries of an index are read at once
local bytes = 0

-- Return how many of an index come before the place; those of the same score are in the order of their agents.
local function rank_of(number, key)
  if from == '' then return redis.pcall('ZCOUNT', key, '(' .. latest, '+inf') end
  -- a call that began again has another place by now
  if number == passed + 1 and from_id ~= '' and redis.pcall('ZSCORE', key, from_id) == from then
    return redis.call('ZCARD', key) - redis.call('ZRANK', key, from_id)
  end
  return redis.pcall('ZCOUNT', key, number <= passed and from or '(' .. from, '+inf')
end

local function advance(index)
  index.at = index.at + 2
  if index.at > #index.rows then
    index.rows = redis.call('ZREVRANGE', index.key, index.rank, index.rank + chunk - 1, 'WITHSCORES')
    index.rank, index.at = index.rank + chunk, 1
  end
  index.id, index.score = index.rows[index.at], tonumber(index.rows[index.at + 1])
  if index.score and index.score < earliest then index.score = nil end
end

local function may_be_named(call)
  local _, before = string.find(call or '', TOOL, 1, true)
  if not before then return false end
  local name, at = string.match(call, '^[^"]*', before + 1), 1
  if string.sub(name, -1) == '\\' then return true end -- a quotation mark in the name
  for number = PIECES, #ARGV do
    local first, last = string.find(name, ARGV[number], at, true)
    if not first or (number == PIECES and first > 1) then return false end
    at = last + 1
  end
  return true
end

local function is_in(text, wanted) return wanted == '' or (text and string.find(text, wanted, 1, true)) end

-- the record of a plain call that has ended well has its names in its result (finishing.lua)
local function is_found(id)
  local key = prefix .. id
  local row = redis.pcall('HMGET', key, 'status', 'outcome', reads_call and 'call' or '', reads_result and 'result' or '')
  if row.err or not row[1] then return false end
  local call, result = row[3], row[4]
  if status ~= '' then
    local outcome = row[2] or (row[1] == 'done' and 'ok')
    if status ~= row[1] and status ~= outcome then return false end
  end
  if reads_call and not call then call = redis.call('HGET', key, 'result') end
  bytes = bytes + #(call or '') + #(result or '')
  if not is_in(call, in_call) or not is_in(call, also_in_call) or not is_in(result, in_result) then return false end
  if #ARGV >= PIECES and not may_be_named(call) then return false end
  return in_error == '' or is_in(result and string.lower(result), in_error)
end

-- a heap: the index with the call that comes next is the first; of calls of one moment, the one of the first agent
local indexes, size = {}, 0

local function comes_before(one, other)
  return one.score > other.score or (one.score == other.score and one.number < other.number)
end

local function sink(at)
  local index = indexes[at]
  while true do
    local below = 2 * at
    if below < size and comes_before(indexes[below + 1], indexes[below]) then below = below + 1 end
    if below > size or not comes_before(indexes[below], index) then break end
    indexes[at], at = indexes[below], below
  end
  indexes[at] = index
end

for number, key in ipairs(KEYS) do
  local rank = rank_of(number, key)
  if type(rank) == 'number' then -- else another program has written the key
    local index = {number = number, key = key, rank = rank, rows = {}, at = 0}
    advance(index)
    if index.score then
      size = size + 1
      indexes[size] = index
    end
  end
end
for at = math.floor(size / 2), 1, -1 do sink(at) end
local seen, found, score, number, id = 0, {}, from, 0, ''
while true do
  local index = indexes[1]
  if not index then
    number = 0
    break
  end
  if seen >= most or #found >= most_found or bytes >= most_bytes then break end
  seen, score, number, id = seen + 1, index.rows[index.at + 1], index.number, index.id
  if is_found(id) then found[#found + 1] = id end
  advance(index)
  if not index.score then
    indexes[1] = indexes[size]
    indexes[size], size = nil, size - 1
  end
  if size > 0 then sink(1) end
end
return {seen, score, number, id, unpack(found)}
