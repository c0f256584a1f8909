"""From the older version of the format to today's: ``goondan migrate``."""
