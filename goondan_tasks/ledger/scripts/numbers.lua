-- Numbers of records; this is put before the scripts that decide by them.

-- Return the number in a field, or another one if the record has none. Fails at what no version writes there: Redis
-- would pass it on as some other number, or end its answer before it.
local function number_in(text, otherwise)
  local number = tonumber(text or otherwise)
  if number and number >= 0 and number < 1e15 then return number end
  error('a number in its record cannot be read')
end
