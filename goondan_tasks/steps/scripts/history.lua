-- What has come of a Turn so far?
-- KEYS  turn
-- ARGV  what the keys of calls begin with; those of results; how many calls at most
-- Returns the lines of the Turn's record, and the latest calls: id, call and result (or false) of each.
local lines = redis.call('LRANGE', KEYS[1], 0, -1)
local most, calls = tonumber(ARGV[3]), {}
for line = #lines, 1, -1 do
  local ids = cjson.decode(lines[line]).callIds or {}
  for i = #ids, 1, -1 do
    if #calls == most then return {lines, calls} end
    calls[#calls + 1] = {
      ids[i], redis.call('HGET', ARGV[1] .. ids[i], 'call'), redis.call('GET', ARGV[2] .. ids[i])
    }
  end
end
return {lines, calls}
