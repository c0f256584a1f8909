"""Threads, the event loop and slots of a worker, and time limits."""
