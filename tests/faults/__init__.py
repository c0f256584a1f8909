"""Faults on purpose: real processes, real signals, and an account of every run kept outside Redis."""
