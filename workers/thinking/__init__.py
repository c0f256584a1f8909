"""Agents that think: their Turns, the requests to their models, and the providers of those."""
