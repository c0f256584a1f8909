"""The threads, the event loop, the slots and the alarms of a worker."""
