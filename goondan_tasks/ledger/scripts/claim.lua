-- Take a call for one run. A call that a plain Celery producer queued gets its record here.
-- KEYS  call, due, running:<agent>, calls:<agent>
-- ARGV  id, token, worker, lease ms, record TTL s, '1' if idempotent, max attempts,
--       then for such a call, or nothing to learn whether it is one: call JSON, digest,
--       its deadline in ms ('' = none), queue timeout ms, and indexes of traces
-- Returns as claim_call does (claiming.lua is put before this).
local terms = {worker = ARGV[3], lease = ARGV[4], ttl = ARGV[5], idempotent = ARGV[6], most = ARGV[7]}
local absent = ARGV[8] and {ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12]}
return claim_alone(KEYS, ARGV[1], ARGV[2], terms, absent)
