"""Agents that act: what an entry is given, calls other agents with, and waits for."""
