-- Claim a call for one run. A call from a plain Celery producer gets its record here.
-- KEYS  call, due, running:<agent>, calls:<agent>
-- ARGV  id, token, worker, lease (ms), record TTL (s), '1' if idempotent, max attempts, its export's time limit
--       (ms, 0 = none); then, unless only a call with a record is to be claimed: call JSON, digest, its deadline
--       (ms, '' = none), queue timeout (ms), '1' if a record of another call is 'taken', indexes of traces
-- Returns as claim_call does (claiming.lua is put before this).
local terms = {worker = ARGV[3], lease = ARGV[4], ttl = ARGV[5], idempotent = ARGV[6], most = ARGV[7], limit = ARGV[8]}
local absent = ARGV[9] and {ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14]}
return claim_alone(KEYS, ARGV[1], ARGV[2], terms, absent)
