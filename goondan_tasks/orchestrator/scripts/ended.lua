-- List an agent's recent calls that were claimed and have ended since a given time.
-- KEYS  calls:<agent>
-- ARGV  call key prefix, that time (ms), most ids to return
-- Returns their ids, the newest first, without those of damaged records.
local ended = {}
for _, id in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  local record = redis.pcall('HMGET', ARGV[1] .. id, 'finishedAt', 'claimedAt', 'args')
  -- in the record of a plain call, the time precedes the arguments (finishing.lua)
  local finished = record[1] or string.match(record[3] or '', '^%S+ (%d+)')
  if (record[2] or record[3]) and tonumber(finished or 0) >= tonumber(ARGV[2]) then
    ended[#ended + 1] = id
    if #ended == tonumber(ARGV[3]) then break end
  end
end
return ended
