"""Notes of the revisions that this process begins to load: one worker before the others, and not for ever.

What ends a process when it is imported is found in a child process (``Revision.try_out``). What ends it
later, an extension's ``register`` for one, ends one worker at a time, for the others wait until a proposal is
decided. It is not loaded again when it has ended so many.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from redis.exceptions import RedisError

from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import iso_time
from goondan_tasks.revisions.active import (
    MOST_LOST_LOADINGS,
    ActiveRevision,
    LoadingTurn,
    RevisionLoading,
    RevisionState,
)
from goondan_tasks.roster import WorkerRecord
from workers.process_identity import ProcessIdentity, this_process

logger = structlog.get_logger(__name__)

#: a worker of another machine that is not known to live may still be about to start, for so long
START_SECONDS = 60.0
#: one of a container with our host's name was most likely our forerunner, in a container that starts again
RESTART_SECONDS = 10.0
#: so long nobody loads a revision: another program has the process id of a worker that has ended
LONGEST_SECONDS = 600.0


class LostLoadingsError(ConfigError):
    """Loading the revision has ended the workers that tried."""

    suggestion = "Keep what ends a process, or takes all its memory, out of what is run at import."


class LoadedElsewhereError(Exception):
    """Another worker loads the revision."""


class LoadingNotes:
    """Notes each loading in the record before it begins, and takes that back when it has ended."""

    def __init__(
        self,
        record: ActiveRevision,
        workers: Callable[[], Iterable[WorkerRecord]],
        *,
        clock: Callable[[], float] = wall_clock,
        process: ProcessIdentity | None = None,
    ) -> None:
        self._record = record
        self._workers = workers
        self._clock = clock
        self._process = process or this_process()

    @property
    def worker(self) -> str:
        """What people know this process by."""
        return self._process.name

    @contextlib.contextmanager
    def noted(self, ref: str, *, is_alone: bool = False) -> Iterator[None]:
        """Load a revision in the block, if ``is_alone`` while nobody else does; without Redis all the same.

        Raises:
            LostLoadingsError: so many workers have ended with that, that the block is not entered.
            LoadedElsewhereError: another worker loads it, and so the block is not entered.
        """
        us = self._process
        loading = RevisionLoading(
            ref=ref, worker=us.name, worker_id=us.id, place=us.place, since=iso_time(self._clock())
        )
        turn: LoadingTurn = "ours"
        with _unless_redis_is_away():
            turn = self._record.begin_loading(loading, is_lost=self._is_lost)
        if turn == "nobody's":
            raise LostLoadingsError(f"{MOST_LOST_LOADINGS} workers have ended while they loaded {ref}.")
        if turn == "theirs" and is_alone:
            raise LoadedElsewhereError(ref)
        try:
            yield
        finally:
            with _unless_redis_is_away():
                self._record.end_loading(ref, us.id)

    def are_elsewhere(self, state: RevisionState, ref: str) -> bool:
        """Say whether another worker that lives loads a revision."""
        loading = state.loading_of(ref)
        return loading is not None and loading.worker_id != self._process.id and not self._is_lost(loading)

    def are_open(self, state: RevisionState) -> bool:
        """Say whether workers that live are loading a revision: such a one may not be known yet."""
        return any(not self._is_lost(loading) for loading in state.loading)

    def _is_lost(self, loading: RevisionLoading) -> bool:
        """Say whether the worker of a loading has ended, as far as can be told from here."""
        us, (pid, _, host) = self._process, loading.worker.partition("@")
        age = datetime.fromtimestamp(self._clock() / 1000, UTC) - datetime.fromisoformat(loading.since)
        if loading.worker_id == us.id:
            return False
        if loading.place == us.place:
            is_over = age > timedelta(seconds=LONGEST_SECONDS)
            return is_over or int(pid) == us.pid or not _is_running(int(pid))
        if any(worker.id == loading.worker_id for worker in self._workers()):
            return False
        return age > timedelta(seconds=RESTART_SECONDS if host == us.host else START_SECONDS)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):  # where there is no /proc, one that nobody has waited for counts
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return True


@contextlib.contextmanager
def _unless_redis_is_away() -> Iterator[None]:
    try:
        yield
    except (RedisError, ValueError) as error:
        logger.warning("revision.loading_not_noted", reason=str(error))
