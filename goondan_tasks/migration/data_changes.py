"""The changes of a YAML text, made to the data that it stands for."""

from typing import Any

from goondan_tasks.json_values import Path


def replaced(data: Any, path: Path, value: Any) -> Any:
    """Return ``data`` with ``value`` at ``path``."""
    if not path:
        return value
    step, *rest = path
    inner = replaced(data[step], tuple(rest), value)
    if isinstance(data, list):
        return [inner if index == step else item for index, item in enumerate(data)]
    return {**data, step: inner}


def renamed(data: Any, path: Path, key: str) -> Any:
    """Return ``data`` with another key for the field at ``path``."""
    fields = {key if name == path[-1] else name: item for name, item in _at(data, path[:-1]).items()}
    return replaced(data, path[:-1], fields)


def removed(data: Any, path: Path) -> Any:
    """Return ``data`` without the field at ``path``, and without a mapping that is empty then."""
    owner = path[:-1]
    fields = {name: item for name, item in _at(data, owner).items() if name != path[-1]}
    if not fields and owner and isinstance(owner[-1], str):
        return removed(data, owner)
    return replaced(data, owner, fields)


def _at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data
