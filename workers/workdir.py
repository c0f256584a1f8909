"""Where an instance works: ``<state root>/workspaces/<workspace>/instances/<instance>/workspace``.

Keys become directory names without collisions (``a/b`` and ``a-b`` differ), and none leads out of
the state root. Sources: 001 §12.5 rule 1, DESIGN §6.
"""

import functools
import hashlib
import os
import stat
import uuid
from pathlib import Path

from goondan_tasks.errors import ToolError

#: a directory name may take 255 bytes; longer encodings end in a digest instead
LONGEST_NAME = 150

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def encoded(key: str) -> str:
    """Encode ``key`` as a directory name: ``a-z 0-9 - _`` stay, every other byte becomes ``%XX``.

    Upper case is encoded too, so that two keys differ on file systems that fold case.
    """
    data = key.encode("utf-8", "backslashreplace")
    name = "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in data) or "%"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 66]}%-{hashlib.sha256(data).hexdigest()}"


class Workdirs:
    """The instances' directories of one workspace."""

    def __init__(self, state_root: Path, workspace: str) -> None:
        self._instances = state_root / "workspaces" / encoded(workspace) / "instances"
        self._paths = functools.lru_cache(maxsize=1024)(self._paths_of)

    def open(self, instance_key: str) -> Path:
        """Return the instance's directory, made on first use.

        Raises:
            ToolError: something on the way to it is a link or a file.
            OSError: it cannot be made.
        """
        workdir, *parts = self._paths(instance_key)
        if not all(map(_is_directory, parts)):
            _make(workdir, instance_key)
        return workdir

    def _paths_of(self, instance_key: str) -> tuple[Path, str, str]:
        home = self._instances / encoded(instance_key)
        return home / "workspace", str(home), str(home / "workspace")


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _make(workdir: Path, instance_key: str) -> None:
    workdir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for part in (workdir.parent, workdir):
        if part.is_symlink():
            raise ToolError(
                f"The workdir of instance {instance_key!r} is a link: {part}",
                suggestion="Remove the link; an instance's directory must be a real one.",
            )


def root_id(state_root: Path) -> str:
    """Return the id of a state root, made on first use; workers on one volume read the same id.

    Raises:
        OSError: the root cannot be made or written.
    """
    state_root.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = state_root / "root-id"
    fresh = state_root / f".root-id-{uuid.uuid4().hex}"
    if not place.exists():
        fresh.write_text(uuid.uuid4().hex, encoding="ascii")
        try:
            os.link(fresh, place)  # atomic, and only the first of several workers succeeds
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return place.read_text(encoding="ascii").strip()
