"""The ledger: the records of calls in Redis, which only its Lua scripts change."""
