"""The files of instances below this machine's state root, and their removal.

An instance's directory is renamed (*set aside*) before it is removed, so that no call finds only part of it.
Links below the state root are never followed: each directory is opened from its parent's descriptor, and
links are removed as links (O_NOFOLLOW, openat(2)).
"""

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from goondan_tasks.instances.table import InstanceDirectory, instances_directory
from goondan_tasks.machine.trees import remove_tree, walk

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_ASIDE = re.compile(r"\.retired-(?P<token>[0-9a-f]{32})-(?P<name>.+)")


class InstanceFiles:
    """The directories of instances below one state root."""

    def __init__(self, state_root: Path) -> None:
        self.state_root = state_root

    @property
    def root_id(self) -> str | None:
        """The state root's id, or ``None`` if no worker has used it."""
        try:
            return (self.state_root / "root-id").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def path(self, directory: InstanceDirectory) -> Path:
        """Return the path of an instance's directory, which need not exist."""
        return instances_directory(self.state_root, directory.workspace) / directory.name

    def is_there(self, directory: InstanceDirectory) -> bool:
        """Return whether something is at a directory's path."""
        return os.path.lexists(self.path(directory))

    def set_aside(self, directory: InstanceDirectory, token: str) -> bool:
        """Rename a directory, in one step; false if there is none.

        Raises:
            OSError: it cannot be renamed, or a link is on the way to it.
        """
        with self._instances(directory.workspace) as fd:
            return _set_aside(fd, directory.name, token)

    def give_back(self, directory: InstanceDirectory, token: str) -> bool:
        """Restore a directory, or agents' files in it, that were set aside; true also if there are none.

        False if there are new files in their place; then the old ones are kept under another name.

        Raises:
            OSError: they cannot be renamed.
        """
        path = self.path(directory)
        with self._instances(directory.workspace) as fd:
            is_back = fd is None or _give_back(fd, path, token, "workspace")
        agents = path / "agents"
        if agents.is_symlink() or not agents.is_dir():
            return is_back
        with ExitStack() as closing:
            fd = self._descend(directory.workspace, closing, directory.name, "agents")
            if fd is not None:
                for match in filter(None, map(_ASIDE.fullmatch, _names_in(fd))):
                    if match["token"] == token:
                        is_back = _give_back(fd, agents / match["name"], token, "messages") and is_back
        return is_back

    def remove(self, directory: InstanceDirectory, token: str) -> bool:
        """Remove a directory that was set aside; return whether nothing is left.

        Raises:
            OSError: a link is on the way to it.
        """
        aside = _aside(directory.name, token)
        with self._instances(directory.workspace) as fd:
            if fd is None:
                return True
            _remove(fd, aside)
            return not _is_in(fd, aside)

    def set_agent_aside(self, directory: InstanceDirectory, agent: str, token: str) -> bool:
        """Rename an agent's own files in a shared directory, its conversation; false if there are none.

        Raises:
            OSError: they cannot be renamed, or a link is on the way to them.
        """
        with ExitStack() as closing:
            fd = self._descend(directory.workspace, closing, directory.name, "agents")
            return _set_aside(fd, agent, token)

    def remove_agent(self, directory: InstanceDirectory, agent: str, token: str) -> None:
        """Remove an agent's own files that were set aside.

        Raises:
            OSError: a link is on the way to them.
        """
        with ExitStack() as closing:
            fd = self._descend(directory.workspace, closing, directory.name, "agents")
            if fd is not None:
                _remove(fd, _aside(agent, token))

    def directories(self, workspace: str) -> list[InstanceDirectory]:
        """Return the instances' directories of a workspace, given its directory name, sorted."""
        return [
            InstanceDirectory(workspace, name) for name in self._names(workspace) if not name.startswith(".")
        ]

    def left_aside(self, workspace: str) -> list[tuple[InstanceDirectory, str]]:
        """Return the directories that are set aside in a workspace, with the tokens of their deletions."""
        found = (_ASIDE.fullmatch(name) for name in self._names(workspace))
        return [(InstanceDirectory(workspace, match["name"]), match["token"]) for match in found if match]

    def aside_for(self, directory: InstanceDirectory, token: str) -> float:
        """Return for how many seconds a directory has been set aside; 0 if it is not."""
        try:
            return (
                time.time() - self.path(directory).with_name(_aside(directory.name, token)).lstat().st_ctime
            )
        except OSError:
            return 0.0

    def newest(self, directory: InstanceDirectory) -> float:
        """Return the latest change in a directory, in seconds since the epoch; 0 if it is gone."""
        path = self.path(directory)
        newest = _changed(path)
        for folder, folders, names in walk(path):
            newest = max(newest, *(_changed(Path(folder, name)) for name in [".", *folders, *names]))
        return newest

    def _names(self, workspace: str) -> list[str]:
        with self._instances(workspace) as fd:
            return [] if fd is None else _names_in(fd)

    @contextmanager
    def _instances(self, workspace: str) -> Iterator[int | None]:
        """Open the parent of the instances' directories; ``None`` if it does not exist."""
        with ExitStack() as closing:
            yield self._descend(workspace, closing)

    def _descend(self, workspace: str, closing: ExitStack, *further: str) -> int | None:
        try:
            fd = os.open(self.state_root, _DIRECTORY)
            closing.callback(os.close, fd)
            for name in ("workspaces", workspace, "instances", *further):
                fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                closing.callback(os.close, fd)
        except FileNotFoundError:
            return None
        except OSError as error:
            path = instances_directory(self.state_root, workspace).joinpath(*further)
            raise OSError(error.errno, error.strerror, str(path)) from error
        return fd


def _aside(name: str, token: str) -> str:
    return f".retired-{token}-{name}"


def _set_aside(fd: int | None, name: str, token: str) -> bool:
    if fd is None:
        return False
    try:
        os.rename(name, _aside(name, token), src_dir_fd=fd, dst_dir_fd=fd)
    except FileNotFoundError:
        return False
    return True


def _give_back(fd: int, path: Path, token: str, inner: str) -> bool:
    """Restore ``path`` in its parent directory; ``inner`` is the directory that is created in it first."""
    aside = _aside(path.name, token)
    if not _is_in(fd, aside):
        return True
    with suppress(OSError):  # a new directory that is still empty
        os.rmdir(f"{path.name}/{inner}", dir_fd=fd)
    try:
        os.rename(aside, path.name, src_dir_fd=fd, dst_dir_fd=fd)
    except FileNotFoundError:  # another process was quicker
        return True
    except (FileExistsError, NotADirectoryError):
        pass
    except OSError as error:
        if not _is_in(fd, path.name):
            raise OSError(error.errno, error.strerror, str(path)) from error
    else:
        return True
    os.rename(aside, f".kept-{token}-{path.name}", src_dir_fd=fd, dst_dir_fd=fd)
    return False


def _names_in(fd: int) -> list[str]:
    with os.scandir(fd) as entries:
        return sorted(entry.name for entry in entries)


def _is_in(fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(fd: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            with suppress(OSError):  # the caller looks for what is left
                remove_tree(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
