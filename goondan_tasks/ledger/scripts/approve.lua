-- Approve a call that waits for it: the call is queued, with its message.
-- KEYS  call, due, pending:<agent>, approvals:<agent>, celery-task-meta-<id>, queue, its wake-up key
-- ARGV  id, token, lease (ms), approver, the call's own deadline (ms, '' = none), queue timeout (ms),
--       record TTL (s), message, the call's JSON if a person has changed its arguments ('' = they are as asked for)
-- Returns as resolve.lua does; words: approved, expired, closed, other, unknown.
-- The same token again (the answer was lost) gets the same answer.
local record = redis.pcall('HMGET', KEYS[1], 'status', 'attempt', 'queuedAt', 'call', 'suspendedAt', 'cancelled',
  'completion', 'approval', 'deadline', 'approvalToken')
local status = record[1]
if not status then return {'unknown'} end
if record[10] == ARGV[2] then return {'approved'} end
if status == 'done' or status == 'dead' or record[6] or (record[8] and record[7]) then return {'closed'} end
if status ~= 'pending' then return {'other', status} end
if not record[8] then return {'other', 'completion'} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if number_in(record[9]) < now then
  redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
  redis.call('HSET', KEYS[1], 'token', ARGV[2])
  return {'expired', 'unapproved', number_in(record[2], 0), number_in(record[3], 0), record[4], record[5], ''}
end
local deadline = tonumber(ARGV[5]) or now + ARGV[6]
-- first what the queued call needs: a claim drops the message of one that is still pending. The record replaces the
-- message in every claim of an approved call, so the changed call and the approval are written in one command.
redis.call('LPUSH', KEYS[6], ARGV[8])
if redis.pcall('LLEN', KEYS[7]) == 0 then redis.call('LPUSH', KEYS[7], '1') end
redis.call('ZADD', KEYS[2], deadline, ARGV[1])
local fields = {'status', 'queued', 'approved', ARGV[4], 'approvalToken', ARGV[2], 'deadline', deadline}
if ARGV[9] ~= '' then fields[9], fields[10] = 'call', ARGV[9] end
redis.call('HSET', KEYS[1], unpack(fields))
-- a sweep may have left its token
redis.call('HDEL', KEYS[1], 'approval', 'handle', 'token', 'worker', 'result')
redis.call('EXPIRE', KEYS[1], math.ceil(ARGV[7] + math.max(0, deadline - now) / 1000))
redis.pcall('ZREM', KEYS[3], ARGV[1])
redis.pcall('ZREM', KEYS[4], ARGV[1])
redis.call('DEL', KEYS[5])
return {'approved'}
