"""A file without handlers."""  # E_CONFIG_SCHEMA_INVALID
