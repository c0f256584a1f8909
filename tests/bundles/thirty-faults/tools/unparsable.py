"""A file that is not a Python."""

handlers = {"run": lambda ctx, input:  # E_CONFIG_SCHEMA_INVALID
