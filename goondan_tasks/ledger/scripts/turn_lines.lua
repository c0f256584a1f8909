-- Appends to the record of a Turn. Shared by keeping.lua and note_calls.lua.
local LONGEST = 1000 -- how many lines of one Turn's record are kept

-- Append a line. Returns the error if another program has written the key: the record is only advice.
local function add_line(turn, line, ttl)
  local added = redis.pcall('RPUSH', turn, line)
  if type(added) == 'table' then return added.err end
  redis.call('LTRIM', turn, -LONGEST, -1)
  redis.call('EXPIRE', turn, ttl)
  return false
end
