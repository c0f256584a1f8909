"""Whose something is that an extension has registered."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Whose:
    """An extension of an agent."""

    agent: str
    extension: str
    entry_path: Path
