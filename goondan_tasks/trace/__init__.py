"""Traces: which calls and handoffs belong together, who caused which, and how long each waited and ran."""
