-- Keep a Step that has opened, unless it is kept already: its calls may have begun. keeping.lua is put before this.
-- KEYS  step, catalog, turn, step-revision (only where revisions are remembered)
-- ARGV  ttl (s), catalog (JSON), line for the Turn (JSON), revision, its ttl (s), then each field of the step and its value
-- Returns {the field `step` as it was kept before, or false, the error of the Turn's record, or false}
local step = KEYS[1]
local kept = redis.call('HGET', step, 'step')
if kept then return {kept, false} end
return {false, keep_step(0, 0)}
