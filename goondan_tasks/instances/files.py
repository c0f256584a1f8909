"""The files of instances below this machine's state root, and how they are removed.

A home is renamed in one step (*set aside*) before it is removed, so that no call finds a part of its files.
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

from goondan_tasks.instances.table import Home, instances_directory

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_PATH (Linux) opens a directory that may not be read
_UNREADABLE = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_ASIDE = re.compile(r"\.retired-(?P<token>[0-9a-f]{32})-(?P<name>.+)")


class HomeFiles:
    """The homes below one state root."""

    def __init__(self, state_root: Path) -> None:
        self.state_root = state_root

    @property
    def root_id(self) -> str | None:
        """The state root's id, or ``None`` if no worker has used it."""
        try:
            return (self.state_root / "root-id").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None

    def path(self, home: Home) -> Path:
        """Return the path of a home, which need not exist."""
        return instances_directory(self.state_root, home.workspace) / home.name

    def is_there(self, home: Home) -> bool:
        """Say whether something is at a home's path."""
        return os.path.lexists(self.path(home))

    def set_aside(self, home: Home, token: str) -> bool:
        """Rename a home, in one step; false if there is none.

        Raises:
            OSError: it cannot be renamed, or a link is on the way to it.
        """
        return self._rename(home, home.name, _aside(home, token))

    def give_back(self, home: Home, token: str) -> bool:
        """Restore a home that was set aside; true also if there is nothing to restore.

        False if there is a new home with files in it; then the old one is kept under another name.

        Raises:
            OSError: it cannot be renamed.
        """
        aside = _aside(home, token)
        with self._instances(home.workspace) as directory:
            if directory is None or not _is_in(directory, aside):
                return True
            with suppress(OSError):  # a new home that is still empty
                os.rmdir(f"{home.name}/workspace", dir_fd=directory)
            try:
                os.rename(aside, home.name, src_dir_fd=directory, dst_dir_fd=directory)
            except FileNotFoundError:  # another process was quicker
                return True
            except (FileExistsError, NotADirectoryError):
                pass
            except OSError as error:
                if not _is_in(directory, home.name):
                    raise OSError(error.errno, error.strerror, str(self.path(home))) from error
            else:
                return True
            os.rename(aside, f".kept-{token}-{home.name}", src_dir_fd=directory, dst_dir_fd=directory)
            return False

    def remove(self, home: Home, token: str) -> bool:
        """Remove a home that was set aside; say whether nothing is left.

        Raises:
            OSError: a link is on the way to it.
        """
        aside = _aside(home, token)
        with self._instances(home.workspace) as directory:
            if directory is None:
                return True
            _remove(directory, aside)
            if _is_in(directory, aside):  # most trees can be removed without this
                _permit_all(directory, aside)
                _remove(directory, aside)
            return not _is_in(directory, aside)

    def homes(self, workspace: str) -> list[Home]:
        """Return the homes of a workspace, given its directory name, sorted."""
        return [Home(workspace, name) for name in self._names(workspace) if not name.startswith(".")]

    def left_aside(self, workspace: str) -> list[tuple[Home, str]]:
        """Return the homes that are set aside in a workspace, with the tokens of their deletions."""
        found = (_ASIDE.fullmatch(name) for name in self._names(workspace))
        return [(Home(workspace, match["name"]), match["token"]) for match in found if match]

    def aside_for(self, home: Home, token: str) -> float:
        """Return for how many seconds a home has been set aside; 0 if it is not."""
        try:
            return time.time() - self.path(home).with_name(_aside(home, token)).lstat().st_ctime
        except OSError:
            return 0.0

    def newest(self, home: Home) -> float:
        """Return the latest change in a home, in seconds since the epoch; 0 if it is gone."""
        path = self.path(home)
        newest = _changed(path)
        for folder, folders, names in os.walk(path, followlinks=False):
            newest = max(newest, *(_changed(Path(folder, name)) for name in [".", *folders, *names]))
        return newest

    def _names(self, workspace: str) -> list[str]:
        with self._instances(workspace) as directory:
            return [] if directory is None else _names_in(directory)

    def _rename(self, home: Home, name: str, new_name: str) -> bool:
        with self._instances(home.workspace) as directory:
            if directory is None:
                return False
            try:
                os.rename(name, new_name, src_dir_fd=directory, dst_dir_fd=directory)
            except FileNotFoundError:
                return False
        return True

    @contextmanager
    def _instances(self, workspace: str) -> Iterator[int | None]:
        """Open the parent of the homes; ``None`` if it does not exist."""
        with ExitStack() as closing:
            yield self._descend(workspace, closing)

    def _descend(self, workspace: str, closing: ExitStack) -> int | None:
        try:
            directory = os.open(self.state_root, _DIRECTORY)
            closing.callback(os.close, directory)
            for name in ("workspaces", workspace, "instances"):
                directory = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                closing.callback(os.close, directory)
        except FileNotFoundError:
            return None
        except OSError as error:
            path = instances_directory(self.state_root, workspace)
            raise OSError(error.errno, error.strerror, str(path)) from error
        return directory


def _aside(home: Home, token: str) -> str:
    return f".retired-{token}-{home.name}"


def _names_in(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries)


def _is_in(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, ignore_errors=True, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def _permit_all(directory: int, name: str) -> None:
    """Make a tree's directories writable: package caches, for one, are read-only."""
    with suppress(OSError):
        inner = os.open(name, _UNREADABLE, dir_fd=directory)
        try:
            if hasattr(os, "O_PATH"):  # which has no fchmod, but a path that no link can change
                Path(f"/proc/self/fd/{inner}").chmod(0o700)
            else:
                os.fchmod(inner, 0o700)
            readable = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
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
