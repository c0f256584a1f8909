-- The streams of Turns and calls whose events are kept. This is put before accept.lua and finishing.lua.
-- An entry has the field `entries`, a JSON list of events (turn_events.py). An entry that has pieces of a model's answer, or
-- says that one begins, also has the field `answer`. The first entry is an empty list.

local UNENDED_SECONDS = 604800 -- how long a stream is kept beyond its record if nothing ends it
local UNKEPT_SECONDS = 60 -- how long the stream of an event is kept after its end if its record does not say so

local MOST_JOINED = 4000 -- entries; more would block Redis for too long

local function stream_of(ns, id) return ns .. 'turn-stream:' .. id end -- ns is what precedes `call:<id>`, too

-- Create the stream of a call that is accepted. One that another program has damaged keeps no call from being accepted.
local function open_stream(ns, id, ttl)
  local key = stream_of(ns, id)
  if type(redis.pcall('XADD', key, '*', 'entries', '[]')) == 'string' then
    redis.pcall('EXPIRE', key, ttl + UNENDED_SECONDS)
  end
end

-- Add the events of one entry to what is known of the answers to each Step. Once there is another answer, the one before is
-- void: a worker that was frozen meanwhile may still add to it.
local function add_pieces(steps, at, id, events)
  for _, event in ipairs(events) do
    local step = steps[event.step] or {since = id, pieces = {}, void = {}}
    if step.answer ~= event.answerId and not step.void[event.answerId] then
      if step.answer then step.void[step.answer] = true end
      step.answer, step.pieces = event.answerId, {}
    end
    local piece, is_void = step.pieces[#step.pieces], step.void[event.answerId]
    if event.text and not is_void and (not piece or piece.type ~= event.type) then
      step.pieces[#step.pieces + 1] = {type = event.type, texts = {event.text}}
    elseif event.text and not is_void then
      piece.texts[#piece.texts + 1] = event.text
    end
    step.at, step.count = at, #events
    steps[event.step] = step
  end
end

-- Return the event that stands for the pieces of a Step's last answer. A follower that has read some of the Step's pieces,
-- those from `since` on, and does not know which, begins the answer again. `count` is how many events the entry had whose
-- id it has now, `void` names the answers before: their worker may add to the stream even now.
local function whole_answer(number, step)
  local pieces, void = {}, {}
  for at, piece in ipairs(step.pieces) do
    pieces[at] = string.format('[%s,%s]', cjson.encode(piece.type), cjson.encode(table.concat(piece.texts)))
  end
  for id in pairs(step.void) do void[#void + 1] = cjson.encode(id) end
  table.sort(void)
  return string.format(
    '[{"type":"answer","step":%d,"answerId":%s,"since":"%s","count":%d,"void":[%s],"pieces":[%s]}]', number,
    cjson.encode(step.answer), step.since, step.count, table.concat(void, ','), table.concat(pieces, ','))
end

-- Replace the pieces of each answer by one entry, with the id of the last one; all other entries stay as they are. A stream
-- that is too long, or has lost its beginning because it was, is not changed.
local function join_pieces(key)
  if redis.call('XLEN', key) > MOST_JOINED then return end
  local rows, steps, has_pieces = redis.call('XRANGE', key, '-', '+'), {}, false
  if #rows == 0 or rows[1][2][2] ~= '[]' then return end
  for at, row in ipairs(rows) do
    if row[2][3] == 'answer' then
      has_pieces = true
      add_pieces(steps, at, row[1], cjson.decode(row[2][2]))
    end
  end
  if not has_pieces then return end
  local last, joined = {}, key .. ':joined'
  for number, step in pairs(steps) do last[step.at] = whole_answer(number, step) end
  for at, row in ipairs(rows) do
    local entries = row[2][3] == 'answer' and last[at] or row[2][3] ~= 'answer' and row[2][2]
    if entries then redis.call('XADD', joined, row[1], 'entries', entries) end
  end
  redis.call('RENAME', joined, key)
end

-- End the stream of a call that has its result, if there is one. A damaged one keeps no result from being stored.
local function end_stream(ns, id, keep)
  local key = stream_of(ns, id)
  local ended = redis.pcall('XADD', key, 'NOMKSTREAM', '*', 'entries', '[{"type":"end"}]')
  if type(ended) ~= 'string' then return end
  if not pcall(join_pieces, key) then redis.pcall('DEL', key .. ':joined') end
  redis.pcall('EXPIRE', key, tonumber(keep) or UNKEPT_SECONDS)
end
