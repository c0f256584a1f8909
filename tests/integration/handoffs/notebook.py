"""What agents of ``tests/bundles/handoffs`` did: the lines that they leave outside Redis."""

import json
from pathlib import Path
from typing import Any


class Notebook:
    """The notes of one test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    @property
    def path(self) -> str:
        """What an agent is told to write to."""
        return str(self._path)

    def lines(self) -> list[dict[str, Any]]:
        """Return all whole notes, in the order in which they were left."""
        whole = self._path.read_bytes().rpartition(b"\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def told(self) -> list[Any]:
        """Return what the notes say."""
        return [line["note"] for line in self.lines()]
