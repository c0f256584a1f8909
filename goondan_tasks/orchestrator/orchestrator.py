"""Keeps a worker for every agent that needs one, and stops it when it has been idle for a while.

An agent needs a worker while something waits for it and no live worker, whoever has started that, serves
it. Any number of orchestrators may look after the same agents: a start is claimed in Redis first
(:mod:`goondan_tasks.orchestrator.upkeep`), and the roster is read again after that, so two that saw the
same need start one worker. Workers go on if their orchestrator dies; they are in the roster.
"""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
from redis.exceptions import RedisError

from goondan_tasks.client.queue_status import Backlog
from goondan_tasks.errors import AgentUnavailableError, BrokerUnreachableError
from goondan_tasks.messages import iso_time
from goondan_tasks.orchestrator.fleet import Fleet
from goondan_tasks.orchestrator.members import Member, Members
from goondan_tasks.orchestrator.upkeep import Backoff, Upkeep
from goondan_tasks.roster import WorkerRecord
from goondan_tasks.tool_api import Logger

logger = structlog.get_logger(__name__)

#: how long a worker may have nothing to do
IDLE_SECONDS = 300.0

#: how long after the last sign of whoever starts a worker somebody else may start one
START_MS = 30_000

#: how long after an outage of Redis workers have to come back to the roster
OUTAGE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """When workers are started and stopped."""

    idle_seconds: float = IDLE_SECONDS
    #: whether every agent needs a worker, whatever waits
    is_always_needed: bool = False
    backoff: Backoff = field(default_factory=Backoff)


class Orchestrator:
    """Looks after some agents with worker processes of its own."""

    def __init__(
        self,
        agents: Iterable[str],
        fleet: Fleet,
        members: Members,
        *,
        rules: Rules | None = None,
        log: Logger = logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents = tuple(agents)
        self._fleet = fleet
        self._members = members
        self._rules = rules or Rules()
        self._log = log
        self._clock = clock
        self._no_start_before = 0.0
        self._is_redis_away = False
        #: those that have ended, and of whose end no note was taken yet
        self._ended: deque[Member] = deque()

    def look(self) -> None:
        """Look once at everything, and do what is to be done. While Redis is away nothing is."""
        try:
            self._look()
        except (RedisError, BrokerUnreachableError) as error:
            if not self._is_redis_away:  # once for an outage, not with every look
                self._log.warning("orchestrator.redis_away", reason=str(error))
            self._is_redis_away = True
            for member in self._members.present.values():
                member.silent_since = None  # nobody could hear it
            # workers that live may have left the roster meanwhile: they must have time to come back
            self._no_start_before = self._clock() + OUTAGE_SECONDS
        except ValueError as error:  # what another version has written must not end this one
            self._log.warning("orchestrator.record_not_read", reason=str(error))
        else:
            if self._is_redis_away:
                self._log.info("orchestrator.redis_back")
            self._is_redis_away = False

    def stop(self) -> None:
        """Drain and end the workers that were started here."""
        members = list(self._members.present.values())
        self._members.end()
        try:
            for member in members:
                self._settle(member)
        except RedisError as error:
            self._log.warning("orchestrator.redis_away", reason=str(error))  # a claim on a start runs out

    def begin_anew(self) -> None:
        """Let the workers that were started here drain and leave, and forget all crashes.

        The next look starts workers of what the bundle is then.
        """
        for member in list(self._members.present.values()):
            self._members.stop(member)
        try:
            for agent in self._agents:
                self._fleet.upkeep.change(agent, lambda state, now: Upkeep())
        except RedisError as error:
            self._log.warning("orchestrator.redis_away", reason=str(error))

    def are_served(self) -> bool:
        """Say whether each of the agents has a worker that takes calls.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        workers = self._fleet.workers()
        return all(self._servers(agent, workers) for agent in self._agents)

    def _look(self) -> None:
        self._ended += self._members.ended()
        while self._ended:
            self._bury(self._ended[0])
            self._ended.popleft()
        sight = self._fleet.look(self._agents)
        for agent in self._agents:
            servers = self._servers(agent, sight.workers)
            member = self._members.present.get(agent)
            if member is not None and not self._is_lost(member, servers):
                self._attend(member, sight.backlogs[agent], servers)
            elif not servers and self._is_needed(agent, sight.backlogs[agent]):
                self._start(agent)
            self._watch_loop(agent, sight.upkeeps[agent], now=sight.now, is_served=bool(servers))

    def _watch_loop(self, agent: str, state: Upkeep, *, now: int, is_served: bool) -> None:
        """End a crash loop after a success; while it pauses nobody waits in vain."""
        if state.crashes and is_served and self._fleet.has_finished_run(agent, state.started_at):
            self._fleet.upkeep.change(agent, lambda state, _: state.succeeded())
        elif state.is_pausing(now) and not is_served:
            count = self._fleet.end_queued(agent, unavailable(agent, state, now))
            if count:
                self._log.warning("orchestrator.calls_ended", agent=agent, calls=count)

    def _is_lost(self, member: Member, servers: Iterable[WorkerRecord]) -> bool:
        """Say whether a worker that was at work is silent for too long; then another one takes its place."""
        if not member.is_ready or any(member.is_same(worker) for worker in servers):
            member.silent_since = None
            return False
        now = self._clock()
        member.silent_since = now if member.silent_since is None else member.silent_since
        if now - member.silent_since < self._members.silent_seconds:
            return False
        self._log.error("orchestrator.worker_silent", agent=member.agent, pid=member.process.pid)
        self._members.replace(member)
        return True

    def _attend(self, member: Member, backlog: Backlog, servers: Iterable[WorkerRecord]) -> None:
        """See whether a worker of ours has come up, and whether it is still needed."""
        now = self._clock()
        if not member.is_ready and any(member.is_same(worker) for worker in servers):
            member.is_ready, member.needed_at = True, now
            self._settle(member)
            self._log.info("orchestrator.worker_ready", agent=member.agent, pid=member.process.pid)
        elif not member.is_ready:
            self._fleet.upkeep.change(
                member.agent, lambda state, now: state.kept(member.generation, now, START_MS)
            )
        if self._is_needed(member.agent, backlog) or backlog.running:
            member.needed_at = now
        elif member.is_ready and now - member.needed_at >= self._rules.idle_seconds:
            self._log.info("orchestrator.worker_idle", agent=member.agent, pid=member.process.pid)
            self._members.stop(member)

    def _start(self, agent: str) -> None:
        """Start a worker, unless a crash loop pauses, or somebody else is starting one or has."""
        if self._clock() < self._no_start_before:
            return
        generation = uuid.uuid4().hex
        state = self._fleet.upkeep.change(agent, lambda state, now: state.begun(generation, now, START_MS))
        if state is None:
            return
        if self._servers(agent, self._fleet.workers()):
            self._fleet.upkeep.change(agent, lambda state, _: state.settled(generation))
            return
        try:
            member = self._members.start(agent, generation, state.started_at)
        except OSError as error:
            self._count_crash(agent, generation, f"It cannot be started: {error}.")
        else:
            self._log.info("orchestrator.worker_started", agent=agent, pid=member.process.pid)

    def _is_needed(self, agent: str, backlog: Backlog) -> bool:
        return self._rules.is_always_needed or self._fleet.is_needed(agent, backlog)

    def _servers(self, agent: str, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Return the live workers of an agent; one that we have asked to stop is none."""
        return [
            worker for worker in workers if agent in worker.agents and not self._members.is_leaving(worker)
        ]

    def _settle(self, member: Member) -> None:
        self._fleet.upkeep.change(member.agent, lambda state, _: state.settled(member.generation))

    def _bury(self, member: Member) -> None:
        """Take note of how a worker has ended that nobody here has asked to."""
        code = member.process.poll()
        for worker in self._fleet.workers():
            if member.is_same(worker):  # it was killed: nobody else must wait until its record runs out
                self._fleet.roster.remove_worker(worker.row)
        has_succeeded = self._fleet.has_finished_run(member.agent, member.started_at)
        age = self._fleet.seconds_since(member.started_at)
        if code and not has_succeeded and age < self._rules.backoff.quick_seconds:
            return self._count_crash(member.agent, member.generation, member.worker.reason())
        self._settle(member)
        if has_succeeded:
            self._fleet.upkeep.change(member.agent, lambda state, _: state.succeeded())
        self._log.info("orchestrator.worker_ended", agent=member.agent, pid=member.process.pid, status=code)
        return None

    def _count_crash(self, agent: str, generation: str, reason: str) -> None:
        backoff = self._rules.backoff
        state = self._fleet.upkeep.change(
            agent, lambda state, now: state.crashed(generation, now, reason, backoff)
        )
        if state is not None:
            next_start = iso_time(state.retry_at) if state.is_looping else "at once"
            self._log.error(
                "orchestrator.worker_crashed",
                agent=agent,
                crashes=state.crashes,
                next_start=next_start,
                reason=reason,
            )


def unavailable(agent: str, state: Upkeep, now: int) -> AgentUnavailableError:
    """Return what callers of an agent in a crash loop are told."""
    seconds = max(0, state.retry_at - now) / 1000
    return AgentUnavailableError(
        f"The workers of agent {agent!r} crash as soon as they start, {state.crashes} times now; "
        f"the next start is in {seconds:.0f} s, at {iso_time(state.retry_at)}. {state.reason}"
    )
