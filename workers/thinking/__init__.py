"""Agents that think: their Turns, requests to models, and model providers."""
