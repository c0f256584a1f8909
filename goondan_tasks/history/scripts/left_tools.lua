-- Read what a Step leaves to the next one of its Turn.
-- KEYS  step
-- Returns {its fields `step` and `registered`, each false if it is absent, the names of all fields}
local fields = redis.call('HMGET', KEYS[1], 'step', 'registered')
return {fields[1], fields[2], redis.call('HKEYS', KEYS[1])}
