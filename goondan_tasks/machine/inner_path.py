"""Paths below a directory that other processes may change, opened without following links.

A path is opened component by component: a link that was created in between is an error and no way out. The
first directory that is opened is the parent of the instances, since a workdir may be inside another
instance's, whose programs may replace it. Rule: DESIGN §6, "paths"; O_NOFOLLOW and openat(2).
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class InnerPath:
    """A path inside a workdir, as components below it, none of which was a link when it was located."""

    #: the path as the caller gave it, for error messages
    given: str
    #: the parent of the instances' directories, the only part on the way to which links are followed
    base: Path
    #: the workdir, as components below ``base``
    workdir: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The absolute path of the workdir."""
        return self.base.joinpath(*self.workdir)

    @property
    def absolute(self) -> Path:
        """The absolute path."""
        return self.root.joinpath(*self.parts)

    def make_workdir(self) -> None:
        """Make the directories of the workdir below ``base`` that are missing, each for its owner alone.

        Raises:
            OSError: one cannot be made, or is a link.
        """
        with self._naming_the_path():
            os.close(_descend(self.base, (), self.workdir, make=True, mode=0o700))

    @contextmanager
    def open_directory(self, *, make: bool = False) -> Iterator[int]:
        """Open the path as a directory and yield its descriptor; ``make`` creates missing directories.

        Raises:
            OSError: it does not exist, or a link was created on the way.
        """
        with self._naming_the_path():
            descriptor = _descend(self.base, self.workdir, self.parts, make=make)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def open_parent(self, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the parent directory; yield its descriptor and the path's last component.

        Raises:
            OSError: it does not exist, or the path is the workdir itself.
        """
        if not self.parts:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self.given)
        parent = replace(self, parts=self.parts[:-1])
        with parent.open_directory(make=make) as descriptor, self._naming_the_path():
            yield descriptor, self.parts[-1]

    @contextmanager
    def _naming_the_path(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.given) from error


def unresolved(workdir: Path, parts: tuple[str, ...], given: str) -> InnerPath:
    """Return the path with these components below ``workdir``; opening it fails if one of them is a link."""
    base, inner = _split_at_instances(workdir)
    return InnerPath(given, base, inner, parts)


def _split_at_instances(workdir: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the parent of the instances and the components below it; a path outside is returned whole.

    The parent is known by its name (``instances_directory``): the first one on the path, since programs may
    create directories of the same name further down.
    """
    parts = workdir.parts
    for end in range(3, len(parts) + 1):
        if parts[end - 3] == "workspaces" and parts[end - 1] == "instances":
            return Path(*parts[:end]), parts[end:]
    return workdir, ()


def _descend(
    base: Path, workdir: Sequence[str], parts: Sequence[str], *, make: bool, mode: int = 0o777
) -> int:
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for depth, part in enumerate((*workdir, *parts)):
        try:
            if make and depth >= len(workdir):
                with suppress(FileExistsError):
                    os.mkdir(part, mode, dir_fd=descriptor)
            inner = os.open(part, _DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor
