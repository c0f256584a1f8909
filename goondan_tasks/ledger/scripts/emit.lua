-- Add what a run has emitted to the stream of its call or Turn, if that has one and has not ended, and the claim is held.
-- KEYS  call, the call or event of the stream, stream
-- ARGV  token, the events as a JSON list (turn_events.py), about how many entries the stream keeps
-- Returns 1, or 0 if nothing was added.
-- wrong_type.lua is put before this.
if redis.pcall('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
local status = redis.pcall('HGET', KEYS[2], 'status')
if type(status) ~= 'string' or status == 'done' or status == 'dead' then return 0 end
local added = redis.pcall('XADD', KEYS[3], 'NOMKSTREAM', 'MAXLEN', '~', ARGV[3], '*', 'entries', ARGV[2])
if type(added) == 'table' and not is_wrong_type(added) then return added end
return type(added) == 'string' and 1 or 0
