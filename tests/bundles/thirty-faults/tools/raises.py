"""A file that works at import."""


def load():
    raise RuntimeError("no configuration")  # E_CONFIG_SCHEMA_INVALID


handlers = {"run": load()}
