"""The orchestrator: it keeps a worker for every agent that needs one."""
