-- What another program may have written as the next slot of a schedule. This is put before the scripts that read it.
local LAST_TIME = 253402300799999 -- the end of the year 9999 (ms)

-- Return whether these are a slot and when it is due, as the scripts write them: in ms, or both '' for none.
local function is_slot(slot, due)
  if not slot or not due then return false end
  if slot == '' or due == '' then return slot == due end
  if string.find(slot, '%D') or string.find(due, '%D') then return false end
  return tonumber(slot) <= tonumber(due) and tonumber(due) <= LAST_TIME
end
