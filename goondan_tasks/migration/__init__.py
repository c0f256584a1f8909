"""From the older version of the format to today's: what ``goondan migrate`` does."""

from goondan_tasks.migration.migration import Migration, migrate_bundle

__all__ = ["Migration", "migrate_bundle"]
