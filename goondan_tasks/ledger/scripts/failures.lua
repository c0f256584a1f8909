-- Keeps what people want to know of a run that has failed in the record of its call; results have none of it. This is put
-- before the scripts that end a run.
local RUNS = 3 -- how many of the latest runs keep their lines

-- failure  '' (nothing), or JSON: the number of the attempt, the traceback of the last run ('' while the call has not
--          ended), the lines that the run has logged
local function keep_failure(key, failure)
  if failure == '' then return end
  local attempt, traceback, lines = unpack(cjson.decode(failure))
  if traceback ~= '' then redis.call('HSET', key, 'traceback', traceback) end
  if lines ~= '' then redis.call('HSET', key, string.format('log:%d', attempt), lines) end
  if attempt > RUNS then redis.call('HDEL', key, string.format('log:%d', attempt - RUNS)) end
end
