"""Starts a worker for every agent that needs one, and stops it after it has been idle.

An agent needs a worker if calls or events wait for it and no live worker serves it, whether an orchestrator
started that worker or not. Several orchestrators may manage the same agents. Each claims a start in Redis
(:class:`~goondan_tasks.fleet.crash_backoff.CrashBackoff`) and then reads the agent registry again, so that
only one worker is started. Workers outlive their orchestrator; the next one finds them in the agent registry.
"""

import base64
import binascii
import contextlib
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import milliseconds_of, redis_time, rows_of
from broker_config.in_flight import LeftMessages
from broker_config.queues import call_queue, events_queue
from broker_config.scripts import Script, ScriptCall
from broker_config.settings import Settings
from goondan_tasks.authoring.tool_api import Logger
from goondan_tasks.bundle import Bundle
from goondan_tasks.client.pending_call import Sweeper
from goondan_tasks.client.status import QueueStatus, read_backlogs
from goondan_tasks.contract.calls import Run, draft_call
from goondan_tasks.contract.errors import AgentUnavailableError, BrokerUnreachableError, GoondanError
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, EVENT_TOOL, EVENT_TOOLS
from goondan_tasks.contract.table_rows import only_advice
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry, WorkerRecord
from goondan_tasks.fleet.crash_backoff import BackoffRules, CrashBackoff, CrashBackoffs
from goondan_tasks.fleet.pauses import Pauses
from goondan_tasks.ledger.dead_letters import batches
from goondan_tasks.ledger.ledger import Ledger, sweep_seconds
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.schedule_keeper import ScheduleKeeper
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.oauth.manager import LONGEST_SECONDS
from goondan_tasks.orchestrator.supervisor import Member, Supervisor

logger = structlog.get_logger(__name__)

#: how long a worker may be idle
IDLE_SECONDS = 300.0
#: how long a start blocks others while its worker is not in the agent registry
START_MS = 30_000
#: how long workers have to return to the agent registry after an outage of Redis
OUTAGE_SECONDS = 10.0
#: how long an orchestrator counts as present after each look
SEEN_SECONDS = 10
#: how often the table of agents is published
PUBLISH_SECONDS = 60.0

#: events that no caller waits for; they are kept for the next worker
UNAWAITED_TOOLS = frozenset({EVENT_TOOL, DELEGATE_RESULT_TOOL})
#: how many calls of an agent one look ends
MOST_CALLS_AT_ONCE = 500
#: how many messages of a queue one look reads, in the order in which a worker would
MOST_MESSAGES_AT_ONCE = 500
#: after how many quick crashes in a row an agent gets a worker of its own
ALONE_AFTER_CRASHES = 2
#: how many of an agent's ended calls are searched for a finished run
MOST_ENDED = 50

_ENDED = {b"done", b"dead"}


def patience_of(settings: Settings, bundle: Bundle) -> float:
    """Return how long a worker may drain (seconds); an OAuth refresh may outlast the grace period."""
    return settings.grace_seconds + (LONGEST_SECONDS if bundle.oauth_apps else 0.0)


@dataclass(frozen=True, slots=True)
class Sight:
    """The state in Redis at one look. ``now`` is in ms, Redis time."""

    now: int
    workers: Sequence[WorkerRecord]
    queues: Mapping[str, QueueStatus]
    backoffs: Mapping[str, CrashBackoff]
    #: the agents that are paused: no worker is started for what waits, and none is ended
    paused: Collection[str] = ()


class Fleet:
    """The state of one bundle's agents in Redis, and the calls that wait for their workers.

    Results that it makes name ``name`` as their worker.
    """

    def __init__(
        self,
        redis: Redis,
        settings: Settings,
        agents: Iterable[AgentRecord],
        name: str,
        bundle: Bundle | None = None,
    ) -> None:
        """Look after agents; with a ``bundle``, fire its schedules as well."""
        self._redis, self._settings, self._name, self._bundle = redis, settings, name, bundle
        self._agents = {agent.name: agent for agent in agents}
        self._ledger = Ledger(redis, settings)
        self._keys = self._ledger.keys
        self._reaper = Reaper(self._ledger, settings.help_url)
        self._sweeper = Sweeper(lambda: self._reaper.sweep(name), sweep_seconds(settings))
        self._left = LeftMessages(redis, settings.lease_seconds)
        self._left_sweeper = Sweeper(self._left.put_back, sweep_seconds(settings))
        self.agent_registry = AgentRegistry(redis, self._keys)
        self._schedules = ScheduleKeeper(self._ledger, self._reaper)
        self._publisher = Sweeper(self._publish, PUBLISH_SECONDS)
        self.backoffs = CrashBackoffs(redis, self._keys)
        self._pauses = Pauses(redis, self._keys)
        scripts = files("goondan_tasks.orchestrator") / "scripts"
        self._queued, self._take, self._ended = (
            Script.read(scripts, name) for name in ("queued", "take", "ended")
        )
        #: by agent, calls that are not ended
        self._staying: defaultdict[str, set[str]] = defaultdict(set)

    def look(self, agents: Collection[str]) -> Sight:
        """Read the state of these agents, and record that an orchestrator manages them.

        Messages that a dead worker had reserved are put back into their queues, because no worker may be left
        to do so.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        self._publisher.sweep()
        if self._bundle is not None:  # no worker may be there to do so
            with only_advice(self._keys.schedule_owners):
                self._schedules.look()
        self._sweeper.sweep()
        self._reaper.wake()
        self._left_sweeper.sweep()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for agent in agents:
                pipe.set(self._keys.orchestrated(agent), self._name, ex=SEEN_SECONDS)
            time, *_ = pipe.execute()
        backlogs = read_backlogs(self._redis, self._keys, agents)
        return Sight(
            now=int(milliseconds_of(time)),
            workers=self.workers(),
            queues={name: one.queue for name, one in backlogs.items()},
            backoffs=self.backoffs.read(agents),
            paused=self._pauses.read_and_keep().agents(agents),
        )

    def _publish(self) -> None:
        self.agent_registry.publish_agents(self._agents.values())
        if self._bundle is not None:
            with only_advice(self._keys.schedule_owners):
                self._schedules.keep_first(self._bundle, self._settings.swarm, self._settings.workspace)

    def workers(self) -> list[WorkerRecord]:
        return self.agent_registry.workers()

    def end_worker(self, row: str) -> None:
        """Settle the calls of a worker that has ended, given its row in the agent registry.

        Otherwise sweeps would do so, by the same rules, after its leases. The process must be known to have
        ended: calls of a live one would run twice.

        Raises:
            redis.exceptions.RedisError, BrokerUnreachableError: Redis, or the broker, cannot be reached.
        """
        self.agent_registry.remove_worker(row)
        self._ledger.end_leases(row).run(self._redis)
        self._left.put_back_of(row)
        self._reaper.sweep(self._name)

    def seconds_since(self, moment: int) -> float:
        """Return how many seconds ago ``moment`` (ms, Redis time) was."""
        return (redis_time(self._redis) - moment) / 1000

    def is_needed(self, agent: str, queue: QueueStatus) -> bool:
        """Return whether calls or events wait for a worker; without an entry, events wait for a producer."""
        unserved = 0 if self._agents[agent].has_entry else queue.events
        return bool(queue.backlog - unserved or queue.waiting_for_limit)

    def queued_ids(self, agent: str, *, with_events: bool = True) -> list[str]:
        """Return the ids of the queued calls among an agent's latest 10,000, the oldest first."""
        script_call: ScriptCall[list[bytes]] = ScriptCall(
            self._queued, [self._keys.calls(agent)], [self._keys.call(""), int(with_events)]
        )
        return [call_id.decode() for call_id in script_call.run(self._redis)]

    def has_finished_run(self, agent: str, since: int) -> bool:
        """Return whether a worker of the agent has finished a run since ``since`` (ms, Redis time).

        Results from a sweep or an orchestrator have no start time and do not count.
        """
        script_call: ScriptCall[list[bytes]] = ScriptCall(
            self._ended, [self._keys.calls(agent)], [self._keys.call(""), since, MOST_ENDED]
        )
        return any(self._was_run(call_id.decode()) for call_id in script_call.run(self._redis))

    def end_queued(self, agent: str, error: GoondanError) -> int:
        """End the calls and requests that wait for the agent with ``error``; return how many."""
        self.tidy_queues(agent)  # records calls of plain Celery, which must end, too
        ids = self.queued_ids(agent)
        staying = self._staying[agent]
        staying.intersection_update(ids)
        others = [call_id for call_id in ids if call_id not in staying][:MOST_CALLS_AT_ONCE]
        ended = sum(self._end(batch, self._agents[agent], error) for batch in batches(others))
        if ended:
            self.tidy_queues(agent)
        return ended

    def tidy_queues(self, agent: str) -> None:
        """Remove the messages of ended calls, and record the calls that plain Celery queued."""
        for queue in (call_queue(agent), events_queue(agent)):
            messages = self._redis.lrange(queue, -MOST_MESSAGES_AT_ONCE, -1)
            read = [_read(message) for message in messages]
            with self._redis.pipeline(transaction=False) as pipe:
                for call_id, _ in read:
                    pipe.hget(self._keys.call(call_id), "status")
                statuses = rows_of(pipe)
                for message, status in zip(messages, statuses, strict=True):
                    if status in _ENDED:
                        pipe.lrem(queue, -1, message)  # type: ignore[arg-type]
                pipe.execute()
            if queue == call_queue(agent):
                unknown = [one for one, status in zip(read, statuses, strict=True) if not status]
                if found := [new for one in unknown if (new := _submission(agent, *one)) is not None]:
                    self._ledger.submit_all(found, "")

    def _end(self, ids: list[str], agent: AgentRecord, error: GoondanError) -> int:
        records = {record.id: record for record in self._ledger.records(ids) if record is not None}
        # requests to an agent without an entry wait for its producer, not for a worker
        kept = UNAWAITED_TOOLS if agent.has_entry else EVENT_TOOLS
        staying = {call_id for call_id, record in records.items() if record.call.tool_name in kept}
        self._staying[agent.name] |= staying
        token, lease_ms = uuid.uuid4().hex, round(self._settings.lease_seconds * 1000)
        terms = [token, lease_ms, self._settings.result_ttl_seconds, self._keys.call("")]
        queued = [call_id for call_id in records if call_id not in staying]
        take: ScriptCall[list[Any]] = ScriptCall(self._take, [self._keys.due], [*terms, *queued])
        taken = take.run(self._redis)
        for name, attempt, queued_at in taken:
            record = records[name.decode()]
            run = Run(record.id, record.call, self._name, attempt, queued_at, wall_clock)
            self._reaper.fail(Claim(run, token, Verdict.RUN), error)
        return len(taken)

    def _was_run(self, call_id: str) -> bool:
        try:
            result = self._ledger.result(call_id)
        except ValueError:  # written by a worker of a newer version
            return True
        return result is not None and result.meta.started_at is not None


def _read(message: Any) -> tuple[str, Any]:
    """Return the id and the call of a Celery message; "" and ``None`` if they are missing."""
    call_id, wire = "", None
    with contextlib.suppress(serializer.NotJsonError, binascii.Error, LookupError, TypeError, AttributeError):
        envelope = serializer.decode(message)
        call_id = str(envelope["headers"]["id"])
        body = envelope["body"]
        if envelope["properties"].get("body_encoding") == "base64":
            body = base64.b64decode(body)
        wire = serializer.decode(body)[1]["call"]
    return call_id, wire


def _submission(agent: str, call_id: str, wire: Any) -> Submission | None:
    """Return the submission of a call from plain Celery, ``None`` if a worker must refuse it."""
    if not call_id or not isinstance(wire, Mapping):
        return None
    draft = draft_call({"agentName": agent, "toolCallId": call_id, **wire})
    if draft.fault or draft.call.agent_name != agent:
        return None
    digest = digest_of(draft.call, serializer.encode(draft.call.args))
    return Submission(call_id, draft.call, serializer.encode(draft.call.to_wire()), digest)


@dataclass(frozen=True, slots=True)
class Rules:
    """When workers are started and stopped."""

    idle_seconds: float = IDLE_SECONDS
    #: whether every agent always needs a worker
    is_always_needed: bool = False
    #: whether agents that need a worker at the same time get one together
    are_together: bool = False
    backoff: BackoffRules = field(default_factory=BackoffRules)


class Orchestrator:
    """Starts and stops the workers of some agents."""

    def __init__(
        self,
        agents: Iterable[str],
        fleet: Fleet,
        supervisor: Supervisor,
        *,
        rules: Rules | None = None,
        log: Logger = logger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents, self._fleet, self._supervisor = tuple(agents), fleet, supervisor
        self._rules, self._log, self._clock = rules or Rules(), log, clock
        self._no_start_before = 0.0
        self._is_redis_away = False
        #: workers that have ended, but whose ends are not recorded yet
        self._ended: deque[Member] = deque()

    def look(self) -> None:
        """Check all agents once, and start or stop workers. While Redis cannot be reached, do nothing."""
        try:
            self._look()
        except (RedisError, BrokerUnreachableError) as error:
            if not self._is_redis_away:  # log once per outage
                self._log.warning("orchestrator.redis_away", reason=str(error))
            self._is_redis_away = True
            for member in self._supervisor.members:
                member.silent_since = None  # it could not send heartbeats
            # live workers may have expired from the agent registry and need time to return
            self._no_start_before = self._clock() + OUTAGE_SECONDS
        except ValueError as error:  # a record of another version must not end the orchestrator
            self._log.warning("orchestrator.record_not_read", reason=str(error))
        else:
            if self._is_redis_away:
                self._log.info("orchestrator.redis_back")
            self._is_redis_away = False

    def stop(self) -> None:
        """Drain and end the workers started here."""
        try:
            for member in self._supervisor.end():
                self._settle(member)
                self._end_worker(member)
        except (RedisError, BrokerUnreachableError) as error:
            self._log.warning("orchestrator.redis_away", reason=str(error))  # claims on starts expire

    def restart(self, *, is_whole: bool = True) -> None:
        """Drain the workers started here, and forget all crashes.

        The next look starts workers with the bundle as it is then. Unless ``is_whole``, only workers of
        agents that are no longer managed are drained; others that they serve get a new worker.
        """
        for member in self._supervisor.members:
            if is_whole or not set(self._agents).issuperset(member.agents):
                self._supervisor.stop(member)
        try:
            for agent in self._agents:
                self._fleet.backoffs.change(agent, lambda state, now: CrashBackoff())
        except RedisError as error:
            self._log.warning("orchestrator.redis_away", reason=str(error))

    def are_served(self, ref: str | None = None) -> bool:
        """Return whether each agent has a worker that takes calls; with ``ref``, all must run that revision.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        workers = self._fleet.workers()
        servers = [self._servers(agent, workers) for agent in self._agents]
        return all(some and all(ref in {None, one.bundle_ref} for one in some) for some in servers)

    def _look(self) -> None:
        self._ended += self._supervisor.ended()
        while self._ended:
            self._record_end(self._ended[0])
            self._ended.popleft()
        sight = self._fleet.look(self._agents)
        unserved: list[str] = []
        for agent in self._agents:
            servers = self._servers(agent, sight.workers)
            member = self._supervisor.present.get(agent)
            if member is not None and not self._is_lost(member, servers):
                self._attend(member, agent, sight.queues[agent], servers, is_kept=agent in sight.paused)
            elif not servers and self._is_needed(agent, sight.queues[agent], is_paused=agent in sight.paused):
                unserved.append(agent)
            is_held = bool(servers) or agent in sight.paused
            self._watch_loop(
                agent, sight.backoffs[agent], now=sight.now, is_served=bool(servers), is_held=is_held
            )
        for agents in self._grouped(unserved, sight.backoffs):
            self._start(agents)

    def _grouped(self, agents: Sequence[str], backoffs: Mapping[str, CrashBackoff]) -> list[list[str]]:
        """Return the agents by worker.

        Any of the agents may have caused repeated crashes. Each of them has a worker of its own then: the
        others are served again, and only the one that crashes is paused.
        """
        together = [agent for agent in agents if backoffs[agent].crashes < ALONE_AFTER_CRASHES]
        if not self._rules.are_together or not together:
            return [[agent] for agent in agents]
        return [together, *([agent] for agent in agents if agent not in together)]

    def _watch_loop(
        self, agent: str, state: CrashBackoff, *, now: int, is_served: bool, is_held: bool
    ) -> None:
        """End a crash loop after a success; while it pauses, fail the calls that wait, unless held."""
        if state.crashes and is_served and self._fleet.has_finished_run(agent, state.started_at):
            self._fleet.backoffs.change(agent, lambda state, _: state.succeeded())
        elif state.is_pausing(now) and not is_held:
            count = self._fleet.end_queued(agent, unavailable(agent, state, now))
            if count:
                self._log.warning("orchestrator.calls_ended", agent=agent, calls=count)

    def _is_lost(self, member: Member, servers: Iterable[WorkerRecord]) -> bool:
        """Return whether a ready worker has been missing for too long, and stop it if so."""
        if not member.is_ready or any(member.is_same(worker) for worker in servers):
            member.silent_since = None
            return False
        now = self._clock()
        member.silent_since = now if member.silent_since is None else member.silent_since
        if now - member.silent_since < self._supervisor.silent_seconds:
            return False
        self._log.error("orchestrator.worker_silent", agent=member.names, pid=member.process.pid)
        self._supervisor.stop(member, may_kill=False)
        return True

    def _attend(
        self,
        member: Member,
        agent: str,
        queue: QueueStatus,
        servers: Iterable[WorkerRecord],
        *,
        is_kept: bool,
    ) -> None:
        """Record whether a worker is ready; unless it is kept, stop it if it has been idle for too long."""
        now = self._clock()
        ours = next((worker for worker in servers if member.is_same(worker)), None)
        if not member.is_ready and ours is not None:
            member.is_ready, member.needed_at, member.row = True, now, ours.row
            self._settle(member)
            self._log.info("orchestrator.worker_ready", agent=member.names, pid=member.process.pid)
        elif not member.is_ready:
            self._fleet.backoffs.change(
                agent, lambda state, now: state.kept(member.generation, now, START_MS)
            )
        if is_kept or queue.running or self._is_needed(agent, queue):
            member.needed_at = now
        elif member.is_ready and now - member.needed_at >= self._rules.idle_seconds:
            self._log.info("orchestrator.worker_idle", agent=member.names, pid=member.process.pid)
            self._supervisor.stop(member)

    def _start(self, agents: Iterable[str]) -> None:
        """Start a worker of these agents, except those for which that is not allowed now.

        A crash loop may pause an agent's starts, and another orchestrator may start or have started a worker.
        """
        if self._clock() < self._no_start_before:
            return
        generation, change = uuid.uuid4().hex, self._fleet.backoffs.change
        states = {
            agent: change(agent, lambda state, now: state.begun(generation, now, START_MS))
            for agent in agents
        }
        begun = {agent: state.started_at for agent, state in states.items() if state is not None}
        workers = self._fleet.workers() if begun else []
        for agent in [agent for agent in begun if self._servers(agent, workers)]:
            change(agent, lambda state, _: state.settled(generation))
            del begun[agent]
        if not begun:
            return
        try:
            member = self._supervisor.start(tuple(begun), generation, min(begun.values()))
        except OSError as error:
            self._count_crash(tuple(begun), generation, f"It cannot be started: {error}.")
        else:
            self._log.info("orchestrator.worker_started", agent=member.names, pid=member.process.pid)

    def _is_needed(self, agent: str, queue: QueueStatus, *, is_paused: bool = False) -> bool:
        return self._rules.is_always_needed or (not is_paused and self._fleet.is_needed(agent, queue))

    def _servers(self, agent: str, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Return the live workers of an agent, except those that were told to stop."""
        return [
            worker for worker in workers if agent in worker.agents and not self._supervisor.is_leaving(worker)
        ]

    def _settle(self, member: Member) -> None:
        for agent in member.agents:
            self._fleet.backoffs.change(agent, lambda state, _: state.settled(member.generation))

    def _record_end(self, member: Member) -> None:
        """Settle the calls of a worker that has ended; unless it was told to stop, record how it ended."""
        self._end_worker(member)
        if member.is_stopped:
            return
        code, since = member.process.poll(), member.started_at
        successful = {agent for agent in member.agents if self._fleet.has_finished_run(agent, since)}
        if code and self._fleet.seconds_since(since) < self._rules.backoff.quick_seconds:
            crashed = tuple(agent for agent in member.agents if agent not in successful)
        else:
            crashed = ()
        if crashed:
            self._count_crash(crashed, member.generation, member.worker.reason())
        self._settle(member)
        for agent in successful:
            self._fleet.backoffs.change(agent, lambda state, _: state.succeeded())
        if not crashed:
            self._log.info(
                "orchestrator.worker_ended", agent=member.names, pid=member.process.pid, status=code
            )

    def _end_worker(self, member: Member) -> None:
        """Settle the calls of a worker whose process has ended."""
        rows = {worker.row for worker in self._fleet.workers() if member.is_same(worker)}
        for row in rows | ({member.row} if member.row else set()):
            self._fleet.end_worker(row)

    def _count_crash(self, agents: Sequence[str], generation: str, reason: str) -> None:
        """Count a crash of a worker for these agents that it has served."""
        backoff = self._rules.backoff
        changed = [
            self._fleet.backoffs.change(
                agent, lambda state, now: state.crashed(generation, now, reason, backoff)
            )
            for agent in agents
        ]
        states = [state for state in changed if state is not None]
        if not states:
            return
        worst = max(states, key=lambda state: state.crashes)
        self._log.error(
            "orchestrator.worker_crashed",
            agent=", ".join(agents),
            crashes=worst.crashes,
            next_start=iso_time(worst.retry_at) if worst.is_looping else "at once",
            reason=reason,
        )
        if len(agents) > 1 and worst.crashes >= ALONE_AFTER_CRASHES:
            self._log.warning("orchestrator.workers_separated", agents=len(agents))


def unavailable(agent: str, state: CrashBackoff, now: int) -> AgentUnavailableError:
    """Return the error of calls to an agent in a crash loop."""
    seconds = max(0, state.retry_at - now) / 1000
    return AgentUnavailableError(
        f"The workers of agent {agent!r} crash as soon as they start, {state.crashes} times now; "
        f"the next start is in {seconds:.0f} s, at {iso_time(state.retry_at)}. {state.reason}"
    )
