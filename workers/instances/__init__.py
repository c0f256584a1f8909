"""Instances on this machine: their directories, the paths in them, and what is kept there."""
