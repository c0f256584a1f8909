"""Who commits: one at a time per bundle, on this machine and, with a lock in Redis, on all of them.

Neither lock keeps two commits from being one: that does the compare-and-set of git's refs, here and in the
remote. They keep many that come at once from overtaking one another again and again.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from goondan_tasks.changesets.changeset_error import ChangesetError

#: how long a commit waits for those before it
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.05


class CommitLock(Protocol):
    """What lets one commit at a time through."""

    def hold(self) -> AbstractContextManager[None]:
        """Wait for the turn, and have it as long as the block runs.

        Raises:
            ChangesetError: it did not come in time.
        """


class FileLock:
    """Holds among the processes of this machine; the kernel takes it back from the dead."""

    def __init__(self, file: Path, wait_seconds: float = WAIT_SECONDS) -> None:
        self._file = file
        self._wait_seconds = wait_seconds

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for the turn; see :class:`CommitLock`."""
        deadline = time.monotonic() + self._wait_seconds
        with self._file.open("ab") as file:
            while not _try_lock(file.fileno()):
                if time.monotonic() > deadline:
                    raise too_late()
                time.sleep(LOOK_SECONDS)
            yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def too_late() -> ChangesetError:
    """Return what is raised when the turn does not come."""
    message = "Other commits to this bundle are in progress."
    return ChangesetError(message, code="GIT_ERROR", suggestion="Commit the changeset again in a minute.")
