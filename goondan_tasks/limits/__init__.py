"""Limits: how many calls run at a time, how often calls start, and which calls share one result.

A call passes all of its limits or none. If one stops it, the call enters that limit's wait queue, in order of
submission. Until it is admitted, it takes no worker's slot and has no message.
"""
