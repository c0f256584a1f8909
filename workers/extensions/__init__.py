"""Loads extensions, and provides the API that they register with."""
