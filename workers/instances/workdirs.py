"""The workdirs of instances, with at most one query of the table of instances per interval.

The table is queried when a process first runs something for an instance, and again after
:data:`KNOWN_SECONDS`. In between, only a missing directory causes a query, since the instance is being
deleted then. While Redis is away the last answer counts, however old. A call of an instance that is unknown
to this process waits for Redis, as its result would; otherwise it might run in a directory other than the one
that the instance was spawned with.
"""

import asyncio
import errno
import functools
import os
import stat
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import structlog
from redis.exceptions import RedisError, ResponseError

from broker_config.refusals import RefusedError
from goondan_tasks.contract.errors import (
    PathOutsideWorkdirError,
    RecordDamagedError,
    ToolError,
    ToolTimeoutError,
)
from goondan_tasks.instances.files import InstanceFiles
from goondan_tasks.instances.table import InstanceDirectory, Instances, Opened, encoded, instances_directory
from goondan_tasks.machine.atomic_file import make_private_directory, write_whole
from goondan_tasks.machine.inner_path import unresolved
from workers.cancellation import Cancellation

logger = structlog.get_logger(__name__)

#: how long an answer of the table is cached
KNOWN_SECONDS = 10.0

#: how many instances a process caches
MOST_KNOWN = 4096

#: between two queries while a deletion holds the instance or Redis is away
PAUSE_SECONDS = 0.05


class Workdirs:
    """The instances' directories of one workspace."""

    def __init__(self, state_root: Path, workspace: str) -> None:
        self.workspace = workspace
        self.state_root = state_root
        #: the parent of the instances' directories
        self.instances = instances_directory(state_root, encoded(workspace))
        self._paths = functools.lru_cache(maxsize=1024)(self._paths_of)

    def find(self, instance_key: str, cwd: str | None = None) -> Path | None:
        """Return the instance's directory if it exists: its own, or ``cwd`` inside the instances' parent.

        Raises:
            PathOutsideWorkdirError: a link or a file is on the way to ``cwd``, created since.
        """
        if cwd is None:
            workdir, *parts = self._paths(instance_key)
            return workdir if all(map(_is_directory, parts)) else None
        try:
            with self._spawned(cwd) as (place, _):
                return place
        except FileNotFoundError:
            return None

    def open(self, instance_key: str, cwd: str | None = None) -> Path:
        """Return the instance's directory, creating it on first use; raises as :meth:`find`.

        Raises:
            ToolError: part of its path is a link or a file.
            OSError: it cannot be made.
        """
        if cwd is None:
            workdir, *_ = self._paths(instance_key)
            if self.find(instance_key) is None:
                _make(workdir, instance_key)
            return workdir
        make_private_directory(self.instances)
        is_new = self.find(instance_key, cwd) is None
        with self._spawned(cwd, make=True) as (place, descriptor):
            if is_new:
                os.fchmod(descriptor, 0o700)
            return place

    @contextmanager
    def _spawned(self, cwd: str, *, make: bool = False) -> Iterator[tuple[Path, int]]:
        """Open a directory that an instance was spawned with; its path had no links then."""
        inner = unresolved(self.instances, Path(cwd).parts, cwd)
        try:
            with inner.open_directory(make=make) as descriptor:
                yield inner.absolute, descriptor
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                raise
            raise PathOutsideWorkdirError(
                f"A link or a file has taken the place of a directory on the way to {cwd!r}."
            ) from error

    def _paths_of(self, instance_key: str) -> tuple[Path, str, str]:
        directory = self.instances / encoded(instance_key)
        return directory / "workspace", str(directory), str(directory / "workspace")


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _make(workdir: Path, instance_key: str) -> None:
    make_private_directory(workdir)
    for part in (workdir.parent, workdir):
        if part.is_symlink():
            raise ToolError(
                f"The workdir of instance {instance_key!r} is a link: {part}",
                suggestion="Remove the link; an instance's directory must be a real one.",
            )


def root_id(state_root: Path) -> str:
    """Return the id of a state root, created on first use; workers on one volume read the same id.

    Raises:
        OSError: the state root cannot be created or written.
    """
    make_private_directory(state_root)
    place = state_root / "root-id"
    if not place.exists():
        with suppress(FileExistsError):  # only the first of several workers succeeds
            write_whole(place, uuid.uuid4().hex.encode("ascii"), replaces=False)
    return place.read_text(encoding="ascii").strip()


@dataclass(frozen=True, slots=True)
class OpenWait:
    """How long a call waits for its directory: ``seconds``, or until it is cancelled."""

    seconds: float = 60.0
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True)
class _KnownInstance:
    cwd: str | None
    until: float


class InstanceWorkdirs:
    """The workdirs of a process's instances; without a table, each instance has its own directory."""

    def __init__(self, workdirs: Workdirs, table: Instances | None = None) -> None:
        self._workdirs = workdirs
        self._table = table
        self._known: OrderedDict[tuple[str, str], _KnownInstance] = OrderedDict()
        self._lock = threading.Lock()
        #: the directories that this round of the event loop has checked
        self._seen: dict[tuple[str, str], Path] = {}
        # read on first use: the worker's start reports an unusable state root
        self._root_id = functools.cache(lambda: root_id(workdirs.state_root))

    def open(self, agent: str, instance_key: str, patience: OpenWait = OpenWait()) -> Path:
        """Return the directory in which an agent's instance works, creating it on first use. May block.

        Raises:
            PathOutsideWorkdirError: the directory that it was spawned with leads outside, through a link.
            ToolError: part of the path is a link or a file; or the call was cancelled.
            ToolTimeoutError: for all of ``patience``, a deletion held the instance or Redis was away.
            RecordDamagedError: another program has written the instance's key.
            OSError: the directory cannot be made.
        """
        if self._table is None:
            return self._workdirs.open(instance_key)
        known = self._recall(agent, instance_key)
        if known is not None and known.until > monotonic():
            workdir = self._workdirs.find(instance_key, known.cwd)
            if workdir is not None:
                return workdir
        return self._workdirs.open(instance_key, self._ask(self._table, agent, instance_key, patience))

    def open_on_loop(self, agent: str, instance_key: str) -> Path:
        """Do as :meth:`open` does on the event loop, where each directory is checked once per round.

        A check releases the GIL, and hundreds of calls may begin in one round.
        """
        workdir = self._seen.get((agent, instance_key))
        if workdir is None:
            workdir = self._seen[agent, instance_key] = self.open(agent, instance_key)
            asyncio.get_running_loop().call_soon(self._seen.clear)
        return workdir

    def directory(self, instance_key: str) -> Path:
        """Return the instance's own directory, which holds ``workspace`` and its other files."""
        return self._workdirs.instances / encoded(instance_key)

    def knows(self, agent: str, instance_key: str) -> bool:
        """Return whether the table was queried for this instance within the last :data:`KNOWN_SECONDS`."""
        known = self._known.get((agent, instance_key))
        return known is not None and known.until > monotonic()

    def _ask(self, table: Instances, agent: str, instance_key: str, patience: OpenWait) -> str | None:
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
        """Query the table once; return ``None`` if Redis is away and the instance is unknown.

        Raises:
            RecordDamagedError: another program has written the key of an instance that is unknown here.
        """
        workspace = self._workdirs.workspace
        try:
            try:
                return table.open(agent, instance_key, workspace=workspace, root_id=self._root_id())
            except (ResponseError, RefusedError) as error:  # a full Redis refuses writes but can be read
                logger.warning("instance.not_registered", instance=instance_key, reason=str(error))
                return table.look(agent, instance_key, workspace=workspace)
        except (RedisError, RecordDamagedError) as error:
            known = self._recall(agent, instance_key)
            if known is None and isinstance(error, RecordDamagedError):
                raise
            logger.warning("instance.not_asked", instance=instance_key, reason=str(error))
            return None if known is None else Opened(known.cwd)

    def _note(self, table: Instances, agent: str, instance_key: str, opened: Opened) -> str | None:
        directory = InstanceDirectory.of(self._workdirs.workspace, instance_key)
        files = InstanceFiles(self._workdirs.state_root)
        for token in opened.aside:
            files.give_back(directory, token)
            with suppress(RedisError):  # the next worker that opens it gets the token again
                table.settled(directory, token)
            logger.warning("instance.restored", instance=instance_key, reason="a deletion was left half-done")
        with self._lock:
            self._known[agent, instance_key] = _KnownInstance(opened.cwd, monotonic() + KNOWN_SECONDS)
            self._known.move_to_end((agent, instance_key))
            while len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        return opened.cwd

    def _recall(self, agent: str, instance_key: str) -> _KnownInstance | None:
        with self._lock:
            known = self._known.get((agent, instance_key))
            if known is not None:
                self._known.move_to_end((agent, instance_key))
        return known
