-- Reads the numbers in records. This is put before the scripts that depend on them.

-- Return the number in a field, or `otherwise` if there is no field. A value that no version writes is an error: in an
-- answer, Redis would turn it into another number, or cut the answer off before it.
local function number_in(text, otherwise)
  local number = tonumber(text or otherwise)
  if number and number >= 0 and number < 1e15 then return number end
  error('a number in its record cannot be read')
end
