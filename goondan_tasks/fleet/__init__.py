"""Which agents and workers there are: registry, monitors, counts of calls, pauses, crash loops."""
