"""The orchestrator, which keeps a worker running for every agent that needs one."""
