"""From an (agent, instance) to the directory that it works in, with one question to Redis now and then.

The table is asked when a process first runs something for an instance, and again after
:data:`KNOWN_SECONDS`. In between nothing is sent: if the directory is missed, somebody deletes the
instance, and the table is asked at once. While Redis is away the last answer counts, however old; for an
instance that this process has never heard of it waits, as its result would: to run elsewhere than it was
spawned for would be worse.
"""

import functools
import threading
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import structlog
from redis.exceptions import RedisError, ResponseError

from goondan_tasks.agents.home_files import HomeFiles
from goondan_tasks.agents.homes import Home
from goondan_tasks.agents.instances import Instances, Opened
from goondan_tasks.errors import ToolTimeoutError
from workers.cancellation import Cancellation
from workers.instances.workdir import Workdirs, root_id

logger = structlog.get_logger(__name__)

#: for so long the answer of the table counts without asking again
KNOWN_SECONDS = 10.0
#: how many instances a process keeps in mind
MOST_KNOWN = 4096

#: between two questions, while a deletion has the instance or Redis is away
PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call may wait for its directory: ``seconds``, or until it is cancelled."""

    seconds: float = 60.0
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    cwd: str | None
    until: float


class InstanceWorkdirs:
    """The working directories of one process's instances; without a table, each is its home's own."""

    def __init__(self, workdirs: Workdirs, table: Instances | None = None) -> None:
        self._workdirs = workdirs
        self._table = table
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._lock = threading.Lock()
        # made on first use: that the state root cannot be used is for the worker's start to say
        self._root_id = functools.cache(lambda: root_id(workdirs.state_root))

    def open(self, agent: str, instance_key: str, patience: Patience = Patience()) -> Path:
        """Return the directory in which an agent's instance works, made on first use. May block.

        Raises:
            PathOutsideWorkdirError: it was spawned to work where a link now leads outside.
            ToolError: something on the way to it is a link or a file; or the call was cancelled.
            ToolTimeoutError: a deletion had it, or Redis was away, for the whole of ``patience``.
            OSError: it cannot be made.
        """
        if self._table is None:
            return self._workdirs.open(instance_key)
        known = self._recall(agent, instance_key)
        if known is not None and known.until > monotonic():
            workdir = self._find(instance_key, known.cwd)
            if workdir is not None:
                return workdir
        cwd = self._ask(self._table, agent, instance_key, patience)
        return self._workdirs.open(instance_key) if cwd is None else self._workdirs.open_inside(cwd)

    def knows(self, agent: str, instance_key: str) -> bool:
        """Say whether the table was asked about an instance within the last :data:`KNOWN_SECONDS`."""
        known = self._known.get((agent, instance_key))
        return known is not None and known.until > monotonic()

    def _find(self, instance_key: str, cwd: str | None) -> Path | None:
        return self._workdirs.find(instance_key) if cwd is None else self._workdirs.find_inside(cwd)

    def _ask(self, table: Instances, agent: str, instance_key: str, patience: Patience) -> str | None:
        end = monotonic() + patience.seconds
        while True:
            opened = self._answer(table, agent, instance_key)
            if opened is not None and not opened.held_seconds:
                return self._note(table, agent, instance_key, opened)
            if patience.cancellation is not None and patience.cancellation.error is not None:
                raise patience.cancellation.error
            if monotonic() > end:
                reason = "Redis cannot be reached" if opened is None else "it is being deleted"
                raise ToolTimeoutError(
                    f"Instance {instance_key!r} could not be opened within {patience.seconds:g} s: {reason}."
                )
            sleep(PAUSE_SECONDS)

    def _answer(self, table: Instances, agent: str, instance_key: str) -> Opened | None:
        """Ask once; ``None`` if Redis is away and nothing is known of the instance."""
        workspace = self._workdirs.workspace
        try:
            try:
                return table.open(agent, instance_key, workspace=workspace, root_id=self._root_id())
            except ResponseError as error:  # a full Redis takes nothing up, and can be read
                logger.warning("instance.not_registered", instance=instance_key, reason=str(error))
                return table.look(agent, instance_key, workspace=workspace)
        except RedisError as error:
            known = self._recall(agent, instance_key)
            logger.warning("instance.not_asked", instance=instance_key, reason=str(error))
            return None if known is None else Opened(known.cwd)

    def _note(self, table: Instances, agent: str, instance_key: str, opened: Opened) -> str | None:
        home = Home.of(self._workdirs.workspace, instance_key)
        files = HomeFiles(self._workdirs.state_root)
        for token in opened.aside:
            files.give_back(home, token)
            with suppress(RedisError):  # who opens it next is told once more
                table.settled(home, token)
            logger.warning("instance.restored", instance=instance_key, reason="a deletion was left half-done")
        with self._lock:
            self._known[agent, instance_key] = _Known(opened.cwd, monotonic() + KNOWN_SECONDS)
            self._known.move_to_end((agent, instance_key))
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return opened.cwd

    def _recall(self, agent: str, instance_key: str) -> _Known | None:
        with self._lock:
            known = self._known.get((agent, instance_key))
            if known is not None:
                self._known.move_to_end((agent, instance_key))
        return known
