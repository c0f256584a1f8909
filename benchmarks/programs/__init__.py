"""What each system runs: its tasks and its producer, one module a system.

A worker imports the module as its library wants it, the producer's process calls ``open_producer``; so
here, and only here, apps and brokers are made at import, from the variables of :mod:`benchmarks.workload`.
"""
