"""The composition root of a worker process: its parts are constructed here, once and explicitly."""

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from broker_config.connections import connect
from broker_config.pipelined_writer import PipelinedWriter
from broker_config.process_identity import this_process
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.client.client import Client
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.logs import CallLog, log_stream
from goondan_tasks.fleet.agent_registry import AgentRegistry, ShutdownRequests, describe_agents
from goondan_tasks.fleet.call_counts import CallCounts, CountStore
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.fleet.pauses import Pauses
from goondan_tasks.instances.housekeeping import Housekeeping
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.leases import LeaseKeeper, lease_timeout
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.oauth.manager import RefreshesInFlight
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.bootstrap import Bootstrap, FollowedBundle, are_committed, is_followed
from workers.agents.handoffs import Handoffs
from workers.concurrency.event_loop import EventLoopThread
from workers.concurrency.watchdog import Watchdog
from workers.delivery.cancel_watch import CancelWatch
from workers.delivery.delivery import Delivery
from workers.delivery.limiter import CallLimiter
from workers.delivery.result_writer import ResultWriter, Retries
from workers.delivery.spans import run_spans
from workers.forks import claim_process
from workers.instances.service import Collector
from workers.mcp import process_board
from workers.mcp.suspended import SuspendedCalls
from workers.processes.isolation import Children
from workers.processes.lease_guard_process import GuardTerms, LeaseGuardProcess
from workers.revisions.factory import RevisionFactory, active_revision
from workers.revisions.revisions import Revisions
from workers.revisions.sync import (
    DEV_LOOK_SECONDS,
    LOOK_SECONDS,
    RevisionNews,
    RevisionSync,
    Standby,
    forget_revisions,
    not_followed,
)

logger = structlog.get_logger(__name__)

#: how long after the grace period a worker is killed whose interpreter is held
HELD_SECONDS = 8.0


class ProcessThread(Protocol):
    """A part of the process with a thread of its own."""

    def start(self) -> None:
        """Start it."""


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """The parts of a worker process that others use."""

    settings: Settings
    revisions: Revisions
    delivery: Delivery
    limiter: CallLimiter
    reaper: Reaper
    event_loop: EventLoopThread
    children: Children
    monitors: Monitors
    agent_registry: AgentRegistry
    collector: Collector
    shutdowns: ShutdownRequests
    #: ``None`` if the bundle's revisions are not followed
    sync: RevisionSync | None
    standby: Standby
    refreshes: RefreshesInFlight
    lease_guard: LeaseGuardProcess

    @classmethod
    def start(cls, settings: Settings) -> "WorkerRuntime":
        """Construct the parts of the process and start its threads.

        Raises:
            ConfigError: there is no bundle, or it is not valid.
        """
        runtime, threads = cls._compose(settings, Bootstrap.of(_bundle_path(settings), settings))
        claim_process()
        for thread in threads:
            thread.start()
        return runtime

    @property
    def pauses(self) -> Pauses:
        """What operators have paused."""
        return Pauses(self.delivery.ledger.redis, self.delivery.ledger.keys)

    def serve(self, *agents: str) -> None:
        """Get ready for more agents; those that are served already take no time.

        Raises:
            ConfigError: the entry or an extension of an agent cannot be used.
        """
        (self.sync or self.revisions).serve(*agents)

    def publish_counts(self, worker: str) -> None:
        """Write the counts of this process's calls to Redis, for metrics."""
        ledger, counts = self.delivery.ledger, self.delivery.result_writer.counts
        store, days = CountStore(ledger.redis, ledger.keys), self.settings.usage_days
        store.publish(counts, worker, this_process().id, usage_days=days)

    @classmethod
    def _compose(
        cls, settings: Settings, bootstrap: Bootstrap
    ) -> tuple["WorkerRuntime", "tuple[ProcessThread, ...]"]:
        ledger = Ledger(connect(settings.redis_url, name="goondan-worker"), settings)
        monitors = Monitors(ledger.redis, settings)
        reaper = Reaper(ledger, settings.help_url, monitors)
        process_board().suspended = SuspendedCalls(ledger, reaper)
        children = Children()
        event_loop = EventLoopThread()
        writer = PipelinedWriter(ledger.redis, ledger.unawaited_scripts)
        watchdog = Watchdog()
        cancels = CancelWatch(ledger, watchdog)
        prompt = connect(
            settings.redis_url, name="goondan-leases", timeout_seconds=lease_timeout(settings.lease_seconds)
        )
        leases = LeaseKeeper(Ledger(prompt, settings), settings.lease_seconds, on_lost=cancels.end_lost)
        guard = LeaseGuardProcess(prompt, _guard_terms(ledger))
        instances = Instances(ledger.redis, ledger.keys)
        handoffs = Handoffs(ledger, writer, Client(settings, bootstrap.bundle))
        factory = RevisionFactory(settings, ledger, event_loop, children, instances, handoffs)
        record = active_revision(ledger, bootstrap.bundle)
        agent_registry = AgentRegistry(ledger.redis, ledger.keys)
        revisions, followed = _revisions(factory, bootstrap, record, agent_registry)
        standby = Standby(revisions, record.state, agent_registry.workers)
        news = RevisionNews(revisions, handoffs, settings.swarm)
        sync = None
        if followed is not None:
            look_seconds = DEV_LOOK_SECONDS if settings.dev == "on" else LOOK_SECONDS
            sync = RevisionSync(
                followed, record, revisions, standby=standby, news=news, look_seconds=look_seconds
            )
        limiter = CallLimiter(ledger, writer, revisions.registry)
        spans, log = run_spans(), CallLog(settings, log_stream())
        counts = CallCounts(lambda agent, tool: revisions.active.registry.known(agent, tool))
        retries = Retries(ledger, writer, reaper, revisions.registry, cancels)
        result_writer = ResultWriter(
            ledger, writer, reaper, limiter, leases, cancels, retries, spans, log, counts, monitors
        )
        delivery = Delivery(
            ledger, writer, reaper, limiter, revisions, leases, watchdog, cancels, result_writer, spans
        )
        runtime = cls(
            settings,
            revisions,
            delivery,
            limiter,
            reaper,
            event_loop,
            children,
            monitors,
            agent_registry,
            make_collector(ledger, lambda: revisions.active.bundle),
            ShutdownRequests(ledger.redis, ledger.keys),
            sync,
            standby,
            factory.refreshes,
            guard,
        )
        threads = (guard, writer, watchdog, leases, cancels, event_loop)
        return runtime, (*threads, sync) if sync else threads


def _guard_terms(ledger: Ledger) -> GuardTerms:
    settings = ledger.settings
    return GuardTerms(
        functools.partial(ledger.keep_leases, this_process().id),
        settings.lease_seconds,
        lease_timeout(settings.lease_seconds),
        settings.grace_seconds + HELD_SECONDS,
    )


def _revisions(
    factory: RevisionFactory, bootstrap: Bootstrap, record: ActiveRevision, agent_registry: AgentRegistry
) -> tuple[Revisions, FollowedBundle | None]:
    """Make the revisions that the process begins with; return the bundle that is followed, if any, too."""
    settings, bundle = factory.settings, bootstrap.bundle
    if is_followed(bundle, settings):
        return _followed(factory, bootstrap)
    forget_revisions(
        record, agent_registry.workers, bundle.workspace_name(settings.workspace, settings.swarm)
    )
    return Revisions(factory, bundle, fetch=not_followed), None


def _followed(factory: RevisionFactory, bootstrap: Bootstrap) -> tuple[Revisions, FollowedBundle]:
    settings = factory.settings
    by_content = not are_committed(bootstrap.bundle, settings)
    followed = FollowedBundle.of(_bundle_path(settings), settings, by_content=by_content)
    ref, first, checkout = bootstrap.ref, bootstrap.bundle, bootstrap.checkout
    if ref is None:
        ref, first, checkout = followed.begin()
    fetch = functools.partial(followed.load, instead_of=None if settings.workspace else first)
    return Revisions(factory, first, fetch=fetch, ref=ref, checkout=checkout), followed


def make_collector(ledger: Ledger, bundle: Callable[[], Bundle]) -> Collector:
    """Make the collector of instances past the time limit of the Swarm in the bundle at that time."""
    settings = ledger.settings
    return Collector(
        ledger,
        Housekeeping(
            ledger,
            settings.state_root_path,
            lambda: describe_agents(bundle(), settings.swarm, settings.workspace),
        ),
        workspace=bundle().workspace_name(settings.workspace, settings.swarm),
        policy=lambda: bundle().swarm(settings.swarm).spec.policy.lifecycle,
    )


@functools.cache
def process_runtime() -> WorkerRuntime:
    """Return this process's runtime, started on first use; a forked child starts its own."""
    settings = Settings.load()
    Settings.withhold("oauth_key")  # from the environment of handlers and isolated tools
    return WorkerRuntime.start(settings)


os.register_at_fork(after_in_child=process_runtime.cache_clear)


def _bundle_path(settings: Settings) -> Path:
    if settings.bundle is None:
        raise ConfigError(
            "A worker needs a bundle.",
            suggestion="Set GOONDAN_BUNDLE to the bundle's directory or file, or pass --bundle.",
        )
    return settings.bundle
