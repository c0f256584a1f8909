"""Calls and events that running agents and tools submit, and their waits."""
