-- Keep what people want to know of a run that has failed in the record of its call; results have none of it.
-- KEYS  call
-- ARGV  the number of the attempt, the traceback (of the last run, once the call has ended), the lines that the run has
--       logged; '' for what it does not have
-- Returns 1, or 0 if there is no record, or it is damaged.
local RUNS = 3 -- how many of the latest runs keep their lines
local status = redis.pcall('HGET', KEYS[1], 'status')
if type(status) ~= 'string' then return 0 end
if ARGV[2] ~= '' and (status == 'done' or status == 'dead') then redis.call('HSET', KEYS[1], 'traceback', ARGV[2]) end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'log:' .. ARGV[1], ARGV[3]) end
redis.call('HDEL', KEYS[1], string.format('log:%d', ARGV[1] - RUNS))
return 1
