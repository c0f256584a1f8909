"""Migration of bundles from v1 to the current format, for ``goondan migrate``."""

from goondan_tasks.migration.migration import Migration, migrate_bundle

__all__ = ["Migration", "migrate_bundle"]
