-- Return whether an answer of redis.pcall is the error of a key that holds another type: another program has written it.
local function is_wrong_type(answer)
  return type(answer) == 'table' and string.find(tostring(answer.err), 'WRONGTYPE', 1, true) ~= nil
end
