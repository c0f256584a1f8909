-- Queue a scheduled call at once.
-- KEYS  call, due
-- ARGV  namespace, id
-- Returns 'queued'; 'waits' if its time has come before: it is queued, runs or is pending; 'closed' if it has its final
-- result, or is cancelled; or 'unknown': there is no such call, or its record or mailbox is damaged (waking.lua is put before this).
local record = redis.pcall('HMGET', KEYS[1], 'status', 'cancelled')
local status = record[1]
if not status then return 'unknown' end
if status == 'done' or status == 'dead' or record[2] then return 'closed' end
if status ~= 'scheduled' then return 'waits' end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return wake(ARGV[1], KEYS[2], ARGV[2], now) and 'queued' or 'unknown'
