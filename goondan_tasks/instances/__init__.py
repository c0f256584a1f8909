"""Instances: the table of them in Redis, their files, and how they are deleted."""
