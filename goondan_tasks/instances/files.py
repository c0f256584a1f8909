"""The files of instances below this machine's state root, and their removal.

An instance's directory is renamed (*set aside*) before it is removed, so that no call finds only part of it.
Links below the state root are never followed: each directory is opened from its parent's descriptor, and
links are removed as links (O_NOFOLLOW, openat(2), ``shutil.rmtree``).
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from goondan_tasks.instances.table import InstanceDirectory, instances_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_PATH (Linux) opens a directory that may not be read
_UNREADABLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

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
        return self._rename(directory, directory.name, _aside(directory, token))

    def give_back(self, directory: InstanceDirectory, token: str) -> bool:
        """Restore a directory that was set aside; true also if there is nothing to restore.

        False if there is a new directory with files in it; then the old one is kept under another name.

        Raises:
            OSError: it cannot be renamed.
        """
        aside = _aside(directory, token)
        with self._instances(directory.workspace) as fd:
            if fd is None or not _is_in(fd, aside):
                return True
            with suppress(OSError):  # a new directory that is still empty
                os.rmdir(f"{directory.name}/workspace", dir_fd=fd)
            try:
                os.rename(aside, directory.name, src_dir_fd=fd, dst_dir_fd=fd)
            except FileNotFoundError:  # another process was quicker
                return True
            except (FileExistsError, NotADirectoryError):
                pass
            except OSError as error:
                if not _is_in(fd, directory.name):
                    raise OSError(error.errno, error.strerror, str(self.path(directory))) from error
            else:
                return True
            os.rename(aside, f".kept-{token}-{directory.name}", src_dir_fd=fd, dst_dir_fd=fd)
            return False

    def remove(self, directory: InstanceDirectory, token: str) -> bool:
        """Remove a directory that was set aside; return whether nothing is left.

        Raises:
            OSError: a link is on the way to it.
        """
        aside = _aside(directory, token)
        with self._instances(directory.workspace) as fd:
            if fd is None:
                return True
            _remove(fd, aside)
            if _is_in(fd, aside):  # most trees can be removed without this
                _permit_all(fd, aside)
                _remove(fd, aside)
            return not _is_in(fd, aside)

    def remove_agent(self, directory: InstanceDirectory, agent: str) -> None:
        """Remove an agent's own files from a shared directory: its conversation.

        Raises:
            OSError: a link is on the way to it.
        """
        with ExitStack() as closing:
            fd = self._descend(directory.workspace, closing, directory.name, "agents")
            if fd is not None:
                _remove(fd, agent)

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
            return time.time() - self.path(directory).with_name(_aside(directory, token)).lstat().st_ctime
        except OSError:
            return 0.0

    def newest(self, directory: InstanceDirectory) -> float:
        """Return the latest change in a directory, in seconds since the epoch; 0 if it is gone."""
        path = self.path(directory)
        newest = _changed(path)
        for folder, folders, names in os.walk(path, followlinks=False):
            newest = max(newest, *(_changed(Path(folder, name)) for name in [".", *folders, *names]))
        return newest

    def _names(self, workspace: str) -> list[str]:
        with self._instances(workspace) as fd:
            return [] if fd is None else _names_in(fd)

    def _rename(self, directory: InstanceDirectory, name: str, new_name: str) -> bool:
        with self._instances(directory.workspace) as fd:
            if fd is None:
                return False
            try:
                os.rename(name, new_name, src_dir_fd=fd, dst_dir_fd=fd)
            except FileNotFoundError:
                return False
        return True

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


def _aside(directory: InstanceDirectory, token: str) -> str:
    return f".retired-{token}-{directory.name}"


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
            shutil.rmtree(name, ignore_errors=True, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)


def _permit_all(fd: int, name: str) -> None:
    """Make the directories of a tree writable; package caches, for example, are read-only."""
    with suppress(OSError):
        inner = os.open(name, _UNREADABLE, dir_fd=fd)
        try:
            if hasattr(os, "O_PATH"):  # no fchmod for these, but no link can change this path
                Path(f"/proc/self/fd/{inner}").chmod(0o700)
            else:
                os.fchmod(inner, 0o700)
            readable = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(inner)
        try:
            for inner_name in _names_in(readable):
                _permit_all(readable, inner_name)  # skips what is not a directory
        finally:
            os.close(readable)


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0
