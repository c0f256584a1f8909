"""The tools that a worker has: found in the bundle, registered at run time, built in."""
