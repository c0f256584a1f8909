"""Turns and Steps: pipelines around the core, and the catalogs they leave."""
