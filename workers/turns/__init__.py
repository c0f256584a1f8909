"""Turns and Steps, their pipelines, and the catalogs that Steps fix."""
