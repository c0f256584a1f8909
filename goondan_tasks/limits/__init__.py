"""Limits: how many calls run at once, how often they begin, and which calls are the same one.

A call passes all of its limits, or none. A call that has to wait enters the wait queue of the first limit
that stops it, in order of submission; until it is let in it takes no worker's slot and has no message.
"""
