"""The composition root of a worker process: everything is put together here, once, and explicitly."""

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from broker_config.connections import connect
from broker_config.courier import Courier
from broker_config.settings import Settings
from goondan_tasks.agents.housekeeping import Housekeeping
from goondan_tasks.agents.instances import Instances
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.client.client import Client
from goondan_tasks.dispatch import dispatch_for
from goondan_tasks.errors import ConfigError
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.roster import Roster, describe_agents
from goondan_tasks.shutdown import ShutdownRequests
from goondan_tasks.steps.store import StepStore
from workers.agent_runtime import Swarm
from workers.cancel_watch import CancelWatch
from workers.catalog_guard import CatalogGuard
from workers.children import Children
from workers.colleagues import Colleagues
from workers.collector import Collector
from workers.contexts import ContextFactory
from workers.delivery import Delivery, DeliveryLimits
from workers.doorkeeper import Doorkeeper
from workers.event_loop import EventLoopThread
from workers.executor import Executor
from workers.extensions.api import ExtensionServices
from workers.extensions.events import Events
from workers.extensions.loader import ExtensionLoader
from workers.extensions.pipelines import Pipelines
from workers.extensions.state import MemoryState, RedisState
from workers.handoffs import Handoffs
from workers.instance_workdirs import InstanceWorkdirs
from workers.instances import InstanceDesk
from workers.isolation import Isolation
from workers.oauth import make_oauth
from workers.outputs import Outputs
from workers.registry import Registry
from workers.retries import Retries
from workers.spans import run_spans
from workers.step_tool import step_tool
from workers.steps import Steps, StepTerms
from workers.suspension import Suspension
from workers.system_tools import system_tools
from workers.turns import Turns
from workers.watchdog import Watchdog
from workers.workdir import Workdirs


class ProcessThread(Protocol):
    """A part of the process with a thread of its own."""

    def start(self) -> None:
        """Start it."""


@dataclass(frozen=True, slots=True)
class WorkerRuntime:
    """What the parts of one worker process share."""

    settings: Settings
    bundle: Bundle
    registry: Registry
    extensions: ExtensionLoader
    delivery: Delivery
    doorkeeper: Doorkeeper
    settlement: Settlement
    event_loop: EventLoopThread
    children: Children
    roster: Roster
    collector: Collector
    shutdowns: ShutdownRequests

    @classmethod
    def start(cls, settings: Settings) -> "WorkerRuntime":
        """Put the process together and start its threads.

        Raises:
            ConfigError: there is no bundle, or it is not valid.
        """
        bundle = load_bundle(_bundle_path(settings))
        runtime, threads = cls._put_together(settings, bundle)
        for thread in threads:
            thread.start()
        return runtime

    @classmethod
    def _put_together(
        cls, settings: Settings, bundle: Bundle
    ) -> tuple["WorkerRuntime", "tuple[ProcessThread, ...]"]:
        ledger = Ledger(connect(settings.redis_url, name="goondan-worker"), settings)
        dispatch = dispatch_for(settings)
        settlement = Settlement(ledger, dispatch, settings.help_url)
        children = Children()
        event_loop = EventLoopThread()
        registry = make_registry(settings, bundle, children)
        extensions = make_extensions(bundle, registry, event_loop, ledger)
        leases = LeaseKeeper(ledger, settings.lease_seconds)
        courier = Courier(ledger.redis, taught=ledger.errands.unawaited_scripts)
        watchdog = Watchdog()
        cancels = CancelWatch(ledger, watchdog)
        instances = Instances(ledger.redis, ledger.keys)
        handoffs = Handoffs(ledger, courier, Client(settings, bundle))
        steps = make_steps(ledger, registry, extensions.services, event_loop)
        colleagues = make_colleagues(settings, bundle, handoffs, instances, steps)
        doorkeeper = Doorkeeper(ledger, courier, dispatch, registry=registry, watchdog=watchdog)
        retries = Retries(
            ledger.errands,
            courier,
            settlement,
            registry=registry,
            leases=leases,
            cancels=cancels,
            watchdog=watchdog,
        )
        delivery = Delivery(
            ledger,
            courier,
            settlement,
            doorkeeper=doorkeeper,
            registry=registry,
            executor=make_executor(settings, registry, extensions.services, colleagues, instances, steps),
            leases=leases,
            watchdog=watchdog,
            cancels=cancels,
            retries=retries,
            limits=_limits(settings),
            spans=run_spans(),
        )
        parts = (settings, bundle, registry, extensions, delivery, doorkeeper, settlement)
        runtime = cls(
            *(*parts, event_loop, children),
            roster=Roster(ledger.redis, ledger.keys),
            collector=make_collector(ledger, bundle),
            shutdowns=ShutdownRequests(ledger.redis, ledger.keys),
        )
        return runtime, (courier, watchdog, leases, cancels, event_loop)


def make_registry(settings: Settings, bundle: Bundle, children: Children) -> Registry:
    """Make the registry of a bundle, the system's own tools included."""
    isolation = Isolation(children, settings.help_url)
    is_open = bundle.swarm(settings.swarm).spec.policy.tool_calls.allow == "registry"
    return Registry(bundle, isolation, system_tools(settings.max_output_bytes), is_open=is_open)


def make_extensions(
    bundle: Bundle, registry: Registry, event_loop: EventLoopThread, ledger: Ledger | None = None
) -> ExtensionLoader:
    """Make what loads the extensions of a bundle's agents; none is loaded yet.

    Without a ledger they remember what they do in this process alone, and there are no OAuth tokens.
    """
    store = RedisState(ledger.redis, ledger.settings) if ledger else MemoryState()
    oauth = make_oauth(ledger.settings, bundle, ledger.redis) if ledger else None
    events = Events(event_loop.submit)
    services = ExtensionServices(Pipelines(), registry.dynamic, events, store, registry.catalog, oauth)
    return ExtensionLoader(bundle, services, event_loop)


def make_steps(
    ledger: Ledger, registry: Registry, services: ExtensionServices, event_loop: EventLoopThread
) -> Steps:
    """Make what opens the Steps of a registry's agents, also for producers."""
    settings = ledger.settings
    policy = registry.bundle.swarm(settings.swarm).spec.policy
    steps = Steps(
        StepStore(ledger.redis, ledger.keys, settings.result_ttl_seconds),
        registry,
        services.pipelines,
        events=services.events,
        event_loop=event_loop,
        terms=StepTerms(policy.max_steps_per_turn, settings.max_args_bytes, settings.help_url),
        first_blocks=services.oauth.blocks if services.oauth else lambda _: [],
    )
    registry.add_system_tool(step_tool(steps.open))
    return steps


def make_colleagues(
    settings: Settings, bundle: Bundle, handoffs: Handoffs, instances: Instances, steps: Steps
) -> Colleagues:
    """Make what the runs of this process reach others with."""
    agents = bundle.agent_names(settings.swarm)
    desk = InstanceDesk(instances, _workdirs(settings, bundle), agents)
    return Colleagues(_swarm(settings, bundle), handoffs, desk, steps)


def make_executor(
    settings: Settings,
    registry: Registry,
    services: ExtensionServices,
    colleagues: Colleagues | None = None,
    instances: Instances | None = None,
    steps: Steps | None = None,
) -> Executor:
    """Make the executor of a registry; without the last three it needs neither Redis nor Celery."""
    workdirs = InstanceWorkdirs(_workdirs(settings, registry.bundle), instances)
    contexts = ContextFactory(
        workdirs,
        call_timeout_seconds=settings.call_timeout_seconds,
        colleagues=colleagues,
        public_url=settings.public_url,
    )
    outputs = Outputs(workdirs, settings.max_output_bytes, settings.result_ttl_seconds)
    return Executor(
        registry,
        contexts,
        guard=CatalogGuard(registry, steps),
        pipelines=services.pipelines,
        events=services.events,
        turns=Turns(services.pipelines, services.events),
        outputs=outputs,
        suspension=Suspension(
            registry.bundle.swarm(settings.swarm).spec.policy.tool_calls.approval, settings.result_ttl_seconds
        ),
        help_url=settings.help_url,
    )


def _workdirs(settings: Settings, bundle: Bundle) -> Workdirs:
    return Workdirs(settings.state_root_path, settings.workspace or bundle.workspace_name(settings.swarm))


def make_collector(ledger: Ledger, bundle: Bundle) -> Collector:
    """Make what removes instances past the time limit of the bundle's Swarm."""
    settings = ledger.settings
    agents = describe_agents(bundle, settings.swarm, settings.workspace)
    return Collector(
        ledger,
        Housekeeping(ledger, settings.state_root_path, lambda: agents),
        workspace=settings.workspace or bundle.workspace_name(settings.swarm),
        policy=bundle.swarm(settings.swarm).spec.policy.lifecycle,
    )


@functools.cache
def process_runtime() -> WorkerRuntime:
    """Return this process's runtime, started on first use; a forked child starts its own."""
    return WorkerRuntime.start(Settings.load())


os.register_at_fork(after_in_child=process_runtime.cache_clear)


def _limits(settings: Settings) -> DeliveryLimits:
    return DeliveryLimits(
        settings.max_args_bytes, settings.max_attempts, settings.lease_seconds, settings.max_handoff_depth
    )


def _swarm(settings: Settings, bundle: Bundle) -> Swarm:
    swarm = bundle.swarm(settings.swarm)
    return Swarm(
        name=swarm.name,
        entry_agent=swarm.spec.entry_agent.name,
        agents=bundle.agent_names(settings.swarm),
        most_hops=settings.max_handoff_depth,
    )


def _bundle_path(settings: Settings) -> Path:
    if settings.bundle is None:
        raise ConfigError(
            "A worker needs a bundle.",
            suggestion="Set GOONDAN_BUNDLE to the bundle's directory or file, or pass --bundle.",
        )
    return settings.bundle
