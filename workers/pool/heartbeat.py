"""A worker announces itself and its agents, and renews its heartbeat."""

import os
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from celery import bootsteps
from redis.exceptions import RedisError

from broker_config.process_identity import this_process
from broker_config.queues import IN_FLIGHT, agent_of
from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.contract.table_rows import only_advice
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord, describe_agents
from goondan_tasks.fleet.pauses import Paused
from goondan_tasks.instances.earlier import earlier_workspace
from goondan_tasks.ledger.ledger import sweep_seconds
from goondan_tasks.ledger.schedule_keeper import ScheduleKeeper
from workers.instances.workdirs import root_id
from workers.mcp import process_board
from workers.pool.consumed_queues import PausedQueues, served_agents
from workers.pool.refusal import refuse
from workers.pool.schedules import ScheduleWatch
from workers.pool.shutdown import ShutdownWatch
from workers.runtime import WorkerRuntime, process_runtime

logger = structlog.get_logger(__name__)

TTL_SECONDS = 20

#: how often a worker checks whether it has the active revision of the bundle
STANDBY_SECONDS = 0.5

#: how long a worker waits for the packages of its Models before it is ready
LOAD_SECONDS = 30.0


class Heartbeat(bootsteps.StartStopStep):
    """The consumer step that registers the worker while it consumes."""

    #: a worker is ready when it can be stopped
    requires = ("celery.worker.consumer.tasks:Tasks", "workers.pool.drain:Drain")

    def __init__(self, consumer: Any, **options: Any) -> None:
        self._timers: list[Any] = []
        self._has_entries = False
        self._agents: tuple[str, ...] = ()
        #: the published revision of the bundle, and the version of its registry
        self._published: tuple[str | None, int] | None = None
        self._shutdowns: ShutdownWatch | None = None
        self._paused: PausedQueues | None = None
        self._schedules: ScheduleWatch | None = None
        #: why the last beat has failed; empty if it has not
        self._fault = ""
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Announce the worker; one that must not run logs why and exits with the command line's code.

        Raises:
            SystemExit: it consumes the queue of an agent that is not in its bundle, or cannot load an agent's
                entry or extensions; its workspace or state root differs from that of the agent's other
                workers, or cannot be used; or it follows revisions and other workers of its workspace do not,
                or the reverse.
        """
        try:
            self._announce(consumer)
        except ConfigError as error:
            refuse(error)

    def _announce(self, consumer: Any) -> None:
        runtime = process_runtime()
        runtime.children.limit = consumer.pool.limit
        self._paused = self._paused or PausedQueues(consumer)
        queues = {*consumer.app.amqp.queues.consume_from, *self._paused.names}
        record = describe_worker(runtime, consumer.hostname, queues, consumer.pool.limit)
        self._make_ready(runtime, record)
        self._agents = record.agents
        if not self._join(runtime, record):  # only the first of several workers that start
            warn_of_earlier_workspace(runtime)
        self._schedules = self._schedules or ScheduleWatch(
            ScheduleKeeper(runtime.delivery.ledger, runtime.reaper),
            consumer.timer,
            beat_seconds=sweep_seconds(runtime.settings),
        )
        self._publish_agents(runtime, record)
        # made once: after a reconnection it sees what was requested meanwhile
        self._shutdowns = self._shutdowns or ShutdownWatch(runtime.shutdowns, consumer, self._paused)
        beat = partial(self._beat, runtime, record, consumer, self._shutdowns)
        beat()
        look = partial(self._update_standby, runtime, self._paused, beat)
        self._timers = [
            consumer.timer.call_repeatedly(sweep_seconds(runtime.settings), beat),
            consumer.timer.call_repeatedly(STANDBY_SECONDS, look),
        ]
        logger.info("worker.ready", agents=list(record.agents), concurrency=record.concurrency)

    def _make_ready(self, runtime: WorkerRuntime, record: WorkerRecord) -> None:
        """Load entries and extensions once.

        A reconnection neither reads files that may have changed nor fails if an agent has been removed from
        the bundle meanwhile.
        """
        if not self._has_entries:
            if os.geteuid() == 0:
                logger.warning(
                    "worker.runs_as_root", what_to_do="Run it as a separate user: tools have its permissions."
                )
            require_agents(runtime.revisions.active.bundle, record.agents)
            runtime.serve(*record.agents)
            if not runtime.revisions.active.models.is_warm(LOAD_SECONDS):
                logger.warning(
                    "worker.models_still_load",
                    seconds=LOAD_SECONDS,
                    effect="The first requests to models wait.",
                )
            self._has_entries = True

    def _join(self, runtime: WorkerRuntime, record: WorkerRecord) -> list[WorkerRecord]:
        """Register the worker and return the others; raises ConfigError if it conflicts with one of them."""
        others = runtime.agent_registry.join(record, TTL_SECONDS)
        try:
            require_one_place(record, others)
            require_one_policy(record, others)
        except ConfigError:
            runtime.agent_registry.remove_worker(record.row)
            raise
        warn_of_other_swarms(record, others)
        return others

    def _publish_agents(self, runtime: WorkerRuntime, record: WorkerRecord) -> None:
        """Publish the swarm's agents, and the dynamic tools of those that are served here."""
        active = runtime.revisions.active
        published = active.ref, active.registry.version
        agents = describe_agents(active.bundle, runtime.settings.swarm, runtime.settings.workspace)
        known = [_with_catalog(runtime, agent) if agent.name in record.agents else agent for agent in agents]
        runtime.agent_registry.publish_agents(known, served=record.agents)
        if self._schedules is not None:
            settings = runtime.settings
            with only_advice(runtime.delivery.ledger.keys.schedule_owners):
                self._schedules.keeper.keep(active.bundle, active.ref, settings.swarm, settings.workspace)
        _release_events(runtime, record.agents, are_handled_here=True)  # those that could not be before
        self._published = published

    def stop(self, consumer: Any) -> None:
        """Announce that the worker has stopped."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self._schedules is not None:
            self._schedules.stop()
        runtime = process_runtime()
        try:
            runtime.agent_registry.remove_worker(this_process().id)
            runtime.publish_counts(consumer.hostname)
            # events that this worker has parked are handled by workers of a newer bundle that has the entry
            _release_events(runtime, self._agents, are_handled_here=False)
        except (RedisError, BrokerUnreachableError) as error:
            logger.warning("worker.not_removed", reason=str(error))  # its record expires

    def _update_standby(self, runtime: WorkerRuntime, paused: PausedQueues, beat: Callable[[], None]) -> None:
        """Leave the agents whose active revision this worker lacks, and those that are paused.

        Announce the revision as soon as it is loaded.
        """
        try:
            runtime.standby.look()
        except RedisError as error:
            logger.warning("worker.stand_by_not_decided", reason=str(error))
            return
        leave_agents(runtime, paused)
        if self._published and self._published[0] != runtime.revisions.active.ref:
            beat()

    def _look_at_pauses(self, runtime: WorkerRuntime, consumer: Any) -> None:
        """Read what is paused, and follow it at once; raises RedisError."""
        known, found = runtime.limiter.paused, runtime.pauses.read_and_keep()
        if found == known:  # the same object means that the terms of claims are the same
            return
        runtime.limiter.paused = found
        if self._paused is not None:
            leave_agents(runtime, self._paused)
        if lead := getattr(consumer.pool, "lead", None):
            lead.look_again()  # its reservation has been sent with the terms of before
        log_pauses(known, found, runtime.revisions.served)

    def _beat(
        self, runtime: WorkerRuntime, record: WorkerRecord, consumer: Any, shutdowns: ShutdownWatch
    ) -> None:
        keys = runtime.delivery.ledger.keys
        try:  # the fault of one key must not keep the others from being written, nor calls from being swept
            if not runtime.standby.is_over:
                shutdowns.look()
            self._look_at_pauses(runtime, consumer)
            active = runtime.revisions.active
            if (active.ref, active.registry.version) != self._published:
                with only_advice(keys.agents):
                    self._publish_agents(runtime, record)
            paused = self._paused.agents if self._paused else set()
            runtime.children.limit = consumer.pool.limit
            now = {
                "agents": tuple(sorted({*served_agents(consumer), *paused})),
                "mcp_servers": process_board().records(),
                "bundle_ref": active.ref,
                "concurrency": consumer.pool.limit,
            }
            with only_advice(keys.workers):
                runtime.agent_registry.publish_worker(record.model_copy(update=now), TTL_SECONDS)
            with only_advice(keys.counted):
                runtime.publish_counts(record.name)
            with only_advice(keys.due):
                runtime.reaper.sweep(record.name)
            with only_advice(IN_FLIGHT):
                consumer.pool.intake.renew()
            with only_advice(keys.instances):
                runtime.collector.look(record.name, record.root_id)
            if (
                self._schedules is not None
            ):  # last: it accepts calls, which fails for more reasons than the others
                with only_advice(keys.schedule_owners):
                    self._schedules.look()
            self._fault = ""
        except (RedisError, BrokerUnreachableError) as error:
            if self._fault != str(error):  # once, not every few seconds while Redis is full
                logger.warning("worker.not_announced", reason=str(error))
            self._fault = str(error)


def leave_agents(runtime: WorkerRuntime, queues: PausedQueues) -> None:
    """Leave the agents that are paused, or whose active revision is not loaded here; resume the others."""
    if not runtime.standby.is_over:
        queues.leave(runtime.standby.agents, runtime.limiter.paused.agents(runtime.revisions.served))


def log_pauses(known: Paused, found: Paused, served: Collection[str]) -> None:
    """Log what has been paused and resumed of the agents that are served here."""
    for name, pause in {**known.pauses, **found.pauses}.items():
        target = {"agent": pause.agent} if pause.tool is None else {"agent": pause.agent, "tool": pause.tool}
        if pause.agent not in served or known.pauses.get(name) == found.pauses.get(name):
            continue
        if name in found.pauses:
            logger.warning("agent.paused", **target, by=pause.by, reason=pause.reason)
        else:
            logger.info("agent.resumed", **target)


def _release_events(runtime: WorkerRuntime, agents: Iterable[str], *, are_handled_here: bool) -> None:
    """Release the parked events of the agents whose events are handled here, or of the others."""
    for agent in agents:
        if runtime.revisions.active.registry.handles_events(agent) is are_handled_here:
            runtime.reaper.release_events(agent)


def _with_catalog(runtime: WorkerRuntime, agent: AgentRecord) -> AgentRecord:
    items = runtime.revisions.active.registry.items(agent.name)
    return agent.model_copy(update={"catalog": tuple(item.to_wire() for item in items)})


def describe_worker(
    runtime: WorkerRuntime, name: str, queues: Iterable[str], concurrency: int
) -> WorkerRecord:
    """Describe this process.

    Raises:
        ConfigError: its state root cannot be used.
    """
    agents = sorted(agent for agent in map(agent_of, queues) if agent is not None)
    active = runtime.revisions.active
    known, us = active.bundle.agents, this_process()
    return WorkerRecord(
        name=name,
        id=us.id,
        pid=us.pid,
        host=us.host,
        place=us.place,
        agents=tuple(dict.fromkeys(agents)),
        concurrency=concurrency,
        root_id=_usable_root_id(runtime.settings.state_root_path),
        local_workdir=tuple(
            agent for agent in agents if agent in known and known[agent].spec.workdir == "local"
        ),
        swarm=active.bundle.swarm(runtime.settings.swarm).metadata.name,
        workspace=active.bundle.workspace_name(runtime.settings.workspace, runtime.settings.swarm),
        started_at=iso_time(datetime.now(UTC).timestamp() * 1000),
        bundle_ref=active.ref,
    )


def require_agents(bundle: Bundle, agents: Iterable[str]) -> None:
    """Refuse a worker for unknown agents.

    Raises:
        ConfigError: one of them is not in the bundle.
    """
    unknown = [agent for agent in agents if agent not in bundle.agents]
    if unknown:
        raise ConfigError(f"No agent {unknown[0]!r} in the bundle; it has: {', '.join(bundle.agents)}.")


def _usable_root_id(state_root: Path) -> str:
    try:
        return root_id(state_root)
    except OSError as error:
        raise ConfigError(
            f"The state root {state_root} cannot be used: {error}.",
            suggestion="Set GOONDAN_STATE_ROOT to a directory that this user may write.",
        ) from error


def warn_of_other_swarms(record: WorkerRecord, others: Iterable[WorkerRecord]) -> None:
    """Log each worker that serves an agent of the same name for another swarm of the workspace."""
    for other in others:
        shared = set(record.agents) & set(other.agents)
        if shared and other.swarm and other.swarm != record.swarm:
            logger.warning(
                "worker.other_swarm",
                agents=sorted(shared),
                worker=other.name,
                swarm=other.swarm,
                workspace=other.workspace,
                what_to_do="Each takes calls of the other swarm, whose policy may differ: "
                "give one of them another database.",
            )


def warn_of_earlier_workspace(runtime: WorkerRuntime) -> None:
    """Log where earlier versions kept the bundle's files, as long as its workspace has no instances."""
    bundle, settings = runtime.revisions.active.bundle, runtime.settings
    found = earlier_workspace(bundle, settings, runtime.delivery.ledger.redis)
    if found is not None and not found.is_past:
        workspace = bundle.workspace_name(settings.workspace, settings.swarm)
        logger.warning(
            "worker.earlier_workspace", workspace=workspace, found=found.message, what_to_do=found.remedy
        )


def require_one_policy(record: WorkerRecord, others: Iterable[WorkerRecord]) -> None:
    """Refuse a worker that follows revisions where the workspace's workers do not, or the reverse.

    Where revisions are followed, calls name the active one, and a worker that follows none cannot run them.

    Raises:
        ConfigError: another worker of the workspace differs.
    """
    follows = record.bundle_ref is not None
    for other in others:
        if other.workspace == record.workspace and (other.bundle_ref is not None) is not follows:
            ours, theirs = ("follows", "does not") if follows else ("does not follow", "does")
            raise ConfigError(
                f"This worker {ours} the revisions of its bundle, and worker {other.name} of the same "
                f"workspace {record.workspace!r} {theirs}.",
                suggestion="Give all workers of the workspace the same policy.changesets.enabled, "
                "GOONDAN_BUNDLE_REMOTE and GOONDAN_DEV, which goondan dev sets; to change them, stop all of "
                f"them before you start new ones. A worker that has died counts for {TTL_SECONDS} s more.",
            )


def require_one_place(record: WorkerRecord, others: Iterable[WorkerRecord]) -> None:
    """Refuse a worker whose workdirs are not those of the agent's other workers (DESIGN §6).

    Calls of one instance would find different files in the two places.

    Raises:
        ConfigError: another worker serves one of the agents in another workspace or from another state root.
    """
    for other in others:
        shared = set(record.agents) & set(other.agents)
        if shared and record.is_elsewhere(other):
            raise ConfigError(
                f"Worker {other.name} serves agent {min(shared)!r} in workspace {other.workspace!r} "
                f"(swarm {other.swarm!r}); this one would in workspace {record.workspace!r} "
                f"(swarm {record.swarm!r}): their instances would not share their files.",
                suggestion="Give one of the two systems a database of its own, "
                "GOONDAN_REDIS_URL=redis://HOST:6379/1, or both the same Package or GOONDAN_WORKSPACE if "
                "they are one: without either, the bundle's folder decides. "
                f"A worker that has died counts for {TTL_SECONDS} s more.",
            )
        shared -= set(record.local_workdir)
        if shared and other.root_id != record.root_id:
            raise ConfigError(
                f"Worker {other.name} serves agent {min(shared)!r} from another state root.",
                suggestion="Put GOONDAN_STATE_ROOT of all its workers on one shared volume, or "
                f"give the Agent `workdir: local` if {min(shared)!r} may work on separate files.",
            )
