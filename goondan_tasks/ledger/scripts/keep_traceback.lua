-- Keep the traceback of a call whose run has failed in its record, for people; results have none.
-- KEYS  call
-- ARGV  the traceback
-- Returns 1, or 0 if the call has no result or the record is damaged.
local status = redis.pcall('HGET', KEYS[1], 'status')
if status ~= 'done' and status ~= 'dead' then return 0 end
redis.call('HSET', KEYS[1], 'traceback', ARGV[1])
return 1
