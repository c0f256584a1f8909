"""Limits: how many calls run at once, how often they begin, and which calls are the same one.

A call passes *gates*, all of them or none. A call that has to wait stands in the line of the first gate
that stops it, in the order of submission; it has neither a worker's place nor a message until it is let in.
"""
