"""A file that is no Python."""

handlers = {"run": lambda ctx, input:  # E_CONFIG_SCHEMA_INVALID
