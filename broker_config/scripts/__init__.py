"""Lua scripts, each in a file of its own that says what it takes and returns."""

from importlib.resources import files


def read_script(name: str) -> str:
    """Return the text of a script of this folder."""
    return (files(__package__) / f"{name}.lua").read_text("utf-8")
