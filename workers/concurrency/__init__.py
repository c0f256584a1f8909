"""Threads and the event loop of a worker: places to run in, ways over, and limits of waiting."""
