"""Connectors: programs that receive events from outside, and where these events go."""
