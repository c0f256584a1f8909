"""Where an instance is on disk: ``<state root>/workspaces/<workspace>/instances/<instance>``, its *home*.

Keys become directory names without collisions (``a/b`` and ``a-b`` differ), and none leads out of the
state root. The instance works in ``workspace`` inside. Sources: 001 §12.5 rule 1, DESIGN §6.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

#: a directory name may take 255 bytes; longer encodings end in a digest instead
LONGEST_NAME = 150

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def encoded(key: str) -> str:
    """Encode ``key`` as a directory name: ``a-z 0-9 - _`` stay, every other byte becomes ``%XX``.

    Upper case is encoded too, so that two keys differ on file systems that fold case. No name begins
    with a dot.
    """
    data = key.encode("utf-8", "backslashreplace")
    name = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data) or "%"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 66]}%-{hashlib.sha256(data).hexdigest()}"


@dataclass(frozen=True, slots=True, order=True)
class Home:
    """An instance's place: the names of the directories of its workspace and of its own."""

    workspace: str
    name: str

    @classmethod
    def of(cls, workspace: str, instance_key: str) -> Self:
        """Return the home of an instance."""
        return cls(encoded(workspace), encoded(instance_key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what :meth:`__str__` wrote."""
        workspace, _, name = text.partition("/")
        return cls(workspace, name)

    def __str__(self) -> str:
        return f"{self.workspace}/{self.name}"

    def beside(self, cwd: str) -> Self:
        """Return the home in the same workspace that ``cwd``, a path from the instances' directory, is in."""
        return type(self)(self.workspace, cwd.partition("/")[0])


def instances_directory(state_root: Path, workspace: str) -> Path:
    """Return the directory with the instances of a workspace, by the workspace's directory name."""
    return state_root / "workspaces" / workspace / "instances"
