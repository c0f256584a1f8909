"""Where an instance works: ``workspace`` in its home, or the directory that it was spawned with."""

import functools
import os
import stat
import uuid
from pathlib import Path

from goondan_tasks.agents.homes import encoded, instances_directory
from goondan_tasks.errors import ToolError
from workers.instances.paths import locate


class Workdirs:
    """The instances' directories of one workspace."""

    def __init__(self, state_root: Path, workspace: str) -> None:
        self.workspace = workspace
        self.state_root = state_root
        #: the directory with the homes of the instances
        self.instances = instances_directory(state_root, encoded(workspace))
        self._paths = functools.lru_cache(maxsize=1024)(self._paths_of)

    def find(self, instance_key: str) -> Path | None:
        """Return the instance's directory if there is one."""
        workdir, *parts = self._paths(instance_key)
        return workdir if all(map(_is_directory, parts)) else None

    def open(self, instance_key: str) -> Path:
        """Return the instance's directory, made on first use.

        Raises:
            ToolError: something on the way to it is a link or a file.
            OSError: it cannot be made.
        """
        workdir, *_ = self._paths(instance_key)
        if self.find(instance_key) is None:
            _make(workdir, instance_key)
        return workdir

    def open_inside(self, cwd: str) -> Path:
        """Return a directory that is inside that of the instances, made if it is missing.

        Raises:
            PathOutsideWorkdirError: a link leads outside meanwhile.
            OSError: it cannot be made.
        """
        self.instances.mkdir(parents=True, exist_ok=True)
        place = locate(self.instances, cwd)
        is_new = not place.absolute.exists()
        with place.open_directory(make=True) as descriptor:
            if is_new:
                os.fchmod(descriptor, 0o700)
        return place.absolute

    def find_inside(self, cwd: str) -> Path | None:
        """Return such a directory if it is there.

        Raises:
            PathOutsideWorkdirError: a link leads outside meanwhile.
        """
        try:
            path = locate(self.instances, cwd).absolute
        except FileNotFoundError:
            return None
        return path if _is_directory(str(path)) else None

    def _paths_of(self, instance_key: str) -> tuple[Path, str, str]:
        home = self.instances / encoded(instance_key)
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
