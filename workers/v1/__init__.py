"""The profile of the older version: its tools' contexts, extension API and pipelines (002)."""
