"""``ctx.runtime.spawn`` and ``list`` (004, AgentToolRuntime), and the removal of unused instances."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
from redis.exceptions import RedisError

from goondan_tasks.authoring.tool_api import ListResult, SpawnedAgentInfo, SpawnResult
from goondan_tasks.bundle.resources import LifecyclePolicy, SpawnPolicy
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    HandoffTimeoutError,
    PathOutsideWorkdirError,
    ToolInputValidationError,
)
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY
from goondan_tasks.instances.housekeeping import Housekeeping
from goondan_tasks.instances.table import InstanceInfo, Instances, Spawned
from goondan_tasks.ledger.ledger import Ledger
from workers.instances.workdirs import Workdirs

logger = structlog.get_logger(__name__)

#: how long to wait for a deletion of the same instance, and between two attempts
PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.05

#: how often instances are checked, by all workers together
EVERY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Spawner:
    """The caller of :meth:`InstanceService.spawn`: the agent, its instance, and its workdir."""

    agent: str
    instance_key: str
    workdir: Path


class InstanceService:
    """Spawns and lists instances of one Swarm's ``agents`` in one workspace. Its methods block."""

    def __init__(
        self,
        table: Instances,
        workdirs: Workdirs,
        agents: Collection[str],
        policy: SpawnPolicy | None = None,
    ) -> None:
        self._table = table
        self._workdirs = workdirs
        self._agents = agents
        self._policy = policy or SpawnPolicy()

    def spawn(
        self,
        spawner: Spawner,
        target: str,
        *,
        instance_key: Any = None,
        cwd: Any = None,
        request: str | None = None,
    ) -> SpawnResult:
        """Create an instance of an agent, or return the existing one, which keeps its directory.

        The default key is the caller's own, as for events (DESIGN §4). ``cwd`` is absolute or relative to the
        caller's workdir. Repeating a ``request`` gives the same answer.

        Raises:
            PathOutsideWorkdirError: ``cwd`` leads out of the caller's workdir, or if the policy allows other
                instances' directories, out of the parent of the workspace's instances.
            ToolInputValidationError: the key or ``cwd`` is not valid.
            HandoffTimeoutError: the instance is being deleted, which takes too long.
            BrokerUnreachableError: Redis is away.
        """
        key = spawner.instance_key if instance_key is None else _checked_key(instance_key)
        place = None if cwd is None else self._inside(spawner.workdir, cwd)
        with _reached():
            spawned = self._ask(spawner, target, key, place, request)
        return SpawnResult(
            target=target, instance_key=key, spawned=spawned.is_new, cwd=self._absolute(spawned.cwd)
        )

    def list(self, spawner: Spawner, *, include_all: bool = False) -> ListResult:
        """Return the instances that the caller's instance has spawned, or all of the Swarm's agents.

        Swarms with one Package or ``GOONDAN_WORKSPACE`` share a workspace, but not this list (DESIGN §6).

        Raises:
            BrokerUnreachableError: Redis is away.
        """
        with _reached():
            infos = [info for record in self._table.records() for info in record.infos()]
        wanted = [
            info
            for info in infos
            if info.workspace == self._workdirs.workspace
            and info.target in self._agents
            and (
                include_all
                or (info.owner_agent, info.owner_instance_key) == (spawner.agent, spawner.instance_key)
            )
        ]
        ordered = sorted(wanted, key=lambda info: (info.created_at, info.target, info.instance_key))
        return ListResult(agents=tuple(map(self._described, ordered)))

    def _ask(self, spawner: Spawner, target: str, key: str, cwd: str | None, request: str | None) -> Spawned:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            spawned = self._table.spawn(
                target,
                key,
                workspace=self._workdirs.workspace,
                owner=(spawner.agent, spawner.instance_key),
                cwd=cwd,
                request=request,
            )
            if not spawned.held_seconds:
                return spawned
            if time.monotonic() > end:
                raise HandoffTimeoutError(f"{target}@{key} was not prepared: its instance is being deleted.")
            time.sleep(PAUSE_SECONDS)

    def _inside(self, workdir: Path, cwd: Any) -> str:
        """Return ``cwd`` with links resolved, relative to the parent of the instances."""
        root = Path(os.path.realpath(self._workdirs.instances))
        place = Path(os.path.realpath(workdir / _checked_path(cwd)))
        if self._policy.cwd == "workdir" and not place.is_relative_to(os.path.realpath(workdir)):
            raise PathOutsideWorkdirError(
                f"The directory leads out of the spawner's workdir: {cwd!r:.300}",
                suggestion="Name a directory below the workdir, or set policy.spawn.cwd of the Swarm to "
                "'instances'.",
            )
        inner = place.relative_to(root).as_posix() if place.is_relative_to(root) else "."
        # the parent itself belongs to no instance, and names that begin with a dot are ours
        if inner.startswith("."):
            raise PathOutsideWorkdirError(
                f"The directory leads out of the workspace's instances: {cwd!r:.300}",
                suggestion="Name a directory below the workdir, or below another instance's.",
            )
        return inner

    def _absolute(self, cwd: str | None) -> str | None:
        return None if cwd is None else str(self._workdirs.instances / cwd)

    def _described(self, info: InstanceInfo) -> SpawnedAgentInfo:
        fields = info.model_dump(include=set(SpawnedAgentInfo.model_fields))
        return SpawnedAgentInfo(**{**fields, "cwd": self._absolute(info.cwd)})


@contextlib.contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        raise BrokerUnreachableError(f"The table of instances cannot be reached: {error}") from error


def _checked_key(key: Any) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_INSTANCE_KEY or not _is_encodable(key):
        raise ToolInputValidationError(
            f"instanceKey must be a text of 1 to {LONGEST_INSTANCE_KEY} characters, not {key!r:.100}."
        )
    return key


def _checked_path(cwd: Any) -> str:
    if not isinstance(cwd, str) or not cwd or "\0" in cwd or not _is_encodable(cwd):
        raise ToolInputValidationError(f"cwd must be the path of a directory, not {cwd!r:.100}.")
    return cwd


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


@dataclass(eq=False)
class Collector:
    """Removes the unused instances of one workspace (``policy.lifecycle.ttlSeconds``).

    For each state root one worker does it once a minute, on a thread of its own.
    """

    ledger: Ledger
    housekeeping: Housekeeping
    workspace: str
    policy: Callable[[], LifecyclePolicy]
    _is_at_work: threading.Lock = field(default_factory=threading.Lock)

    def look(self, worker: str, root_id: str) -> None:
        """Begin a round if there is a time limit, and no worker has begun one within the last minute.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        policy = self.policy()
        if policy.ttl_seconds is None or self._is_at_work.locked():
            return
        seconds = policy.ttl_seconds + (policy.gc_grace_seconds or 0)
        if self.ledger.redis.set(self.ledger.keys.collector(root_id), worker, nx=True, ex=EVERY_SECONDS):
            thread = threading.Thread(target=self._run, args=[seconds, root_id], name="goondan-collector")
            thread.daemon = True
            thread.start()

    def _run(self, seconds: float, root_id: str) -> None:
        with self._is_at_work:
            try:
                self.collect(seconds, root_id)
            except (RedisError, OSError) as error:
                logger.warning("instances.not_collected", reason=str(error))  # the next round will

    def collect(self, seconds: float, root_id: str) -> None:
        """Remove the instances unused for ``seconds``, and renew the claim on the round meanwhile."""
        for removal in self.housekeeping.collect(seconds, workspace=self.workspace):
            self.ledger.redis.expire(self.ledger.keys.collector(root_id), EVERY_SECONDS)
            if removal.removed:
                logger.info(
                    "instance.removed",
                    instance=removal.instance_key,
                    agents=list(removal.agents),
                    files=removal.files,
                    reason=removal.reason or f"unused for {seconds:g} s",
                )
