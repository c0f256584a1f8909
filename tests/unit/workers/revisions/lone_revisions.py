"""Stand-in for the revisions of a bundle: one, of which only the tools are there."""

from types import SimpleNamespace
from typing import Any

from workers.tools.registry import Registry


def revisions_with(tools: Registry) -> Any:
    """Return revisions that have the tools of ``tools``, whichever is asked for."""
    return SimpleNamespace(active=SimpleNamespace(ref=None, registry=tools), registry=lambda ref: tools)
