"""The ledger: the record of every call's life in Redis, and the scripts that alone may change it."""
