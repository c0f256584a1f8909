"""One revision of the bundle, as a worker process runs it, and the factory that puts it together."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.entry import EntryModules, handlers_in
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.messages import JsonObject, ToolCall, iso_time, wall_clock
from goondan_tasks.names import EVENT_TOOL
from goondan_tasks.oauth.refresh import RefreshesInFlight
from goondan_tasks.revisions.active import CHANGED, ActiveRevision, RevisionChange
from goondan_tasks.revisions.bootstrap import workspace_of
from goondan_tasks.revisions.checkouts import Checkout
from goondan_tasks.steps import StepStore
from workers.agents.agent_runtime import Swarm
from workers.agents.colleagues import Colleagues, StepsNow
from workers.agents.handoffs import Handoffs
from workers.concurrency.event_loop import EventLoopThread
from workers.contexts import ContextFactory
from workers.executor import Executor
from workers.extensions.api import ExtensionServices
from workers.extensions.events import Events
from workers.extensions.loader import ExtensionLoader
from workers.extensions.pipelines import Pipelines
from workers.extensions.state import MemoryState, RedisState
from workers.extensions.swarm_bundle import SwarmBundleFor, no_swarm_bundle
from workers.instances.outputs import Outputs
from workers.instances.service import InstanceService
from workers.instances.workdirs import InstanceWorkdirs, Workdirs
from workers.oauth import WorkerOAuth, make_oauth
from workers.processes.isolation import Children, Isolation
from workers.revisions.bundle_changes import BundleChanges
from workers.suspension import Suspension
from workers.tools.registry import Registry
from workers.tools.system_tools import system_tools
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.step_tool import step_tool
from workers.turns.steps import Steps, StepTerms
from workers.turns.turns import Turns
from workers.v1.means import V1Means
from workers.v1.views import Views


def revision_block(
    call: ToolCall, store: StepStore, record: ActiveRevision, ref: str | None
) -> list[JsonObject]:
    """Return the block that tells a model that its agent has changed (``emitRevisionChangedEvent``).

    The next Step of each instance has it once, however long the instance has rested. ``store`` remembers the
    revisions of Steps; ``ref`` is the revision of this Step, ``None`` where none is followed.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    last = None if ref is None else store.last_revision(call.agent_name, call.instance_key)
    if ref is None or last is None or last == ref:
        return []
    state = record.state()
    change = state.change if state else None
    if change is None or change.new_ref != ref:
        change = RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock()))
    # several revisions may have come and gone since the last Step
    return [{"type": CHANGED, "data": change.model_copy(update={"previous_ref": last}).to_wire()}]


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision: its tools, its extensions, and what runs calls with them."""

    #: its :class:`~goondan_tasks.revisions.content.BundleRef`; ``None`` where revisions are not followed, and
    #: the worker runs its bundle as it was at the start
    ref: str | None
    bundle: Bundle
    registry: Registry
    extensions: ExtensionLoader
    steps: Steps
    executor: Executor
    children: Children
    modules: EntryModules
    #: its files; ``None`` if they are the bundle's own folder
    checkout: Checkout | None

    def try_out(self, agents: Iterable[str]) -> None:
        """Import the entries, extensions and tools of agents in a child process, which they may end.

        Isolated tools are left out: they never run in this process.

        Raises:
            EntryError: importing a file ends the process, or does not end in time.
            BundleRevisionUnavailableError: no process can be started for now.
        """
        root, files = self.bundle.root.resolve(), list[Path]()
        for agent in filter(self.bundle.agents.__contains__, agents):
            entry = self.bundle.agents[agent].spec.entry
            files += [(root / entry).resolve()] if entry else []
            files += [extension.entry_path for extension in self.bundle.bound_extensions(agent)]
            files += self._tool_files(agent)
        # what is built in comes with the worker
        self.registry.files.try_out(file for file in files if file.is_relative_to(root))

    def _tool_files(self, agent: str) -> list[Path]:
        tools = (self.registry.catalog(agent) or {}).values()
        return [tool.entry_path for tool in tools if tool.export.isolation != "process"]

    def prepare(self, agents: Iterable[str]) -> None:
        """Load the entries and extensions of those of the agents that the revision has.

        Raises:
            ConfigError: one of them cannot be used.
        """
        present = [agent for agent in agents if agent in self.bundle.agents]
        for agent in filter(self.registry.handles_events, present):
            self.registry.tool(agent, EVENT_TOOL)
        for agent in present:
            self.extensions.load(agent)

    def load_tools(self, agents: Iterable[str]) -> None:
        """Import the files of these agents' tools, except isolated ones, before their first calls do.

        Raises:
            EntryError: one cannot be imported, or takes too long.
            ToolNotFoundError: one has no handler for an export.
        """
        for agent in agents:
            for file in self._tool_files(agent):
                self.registry.files.load(file, handlers_in)
            for name in self.registry.catalog(agent) or {}:
                self.registry.tool(agent, name)

    def close(self) -> None:
        """Release everything that belongs to this revision alone, when none of its calls runs any more.

        Its extensions are told and have some seconds. Then their registrations are gone, the children of its
        isolated tools have ended, its modules are forgotten, and its files may be removed. A revision that is
        only partly prepared can be closed, too. This blocks; a second call does nothing.
        """
        self.extensions.unload()
        self.children.end_below(self.bundle.root.resolve())
        self.modules.close()
        if self.checkout is not None:
            self.checkout.close()


@dataclass(frozen=True, slots=True)
class RevisionFactory:
    """Makes the revisions of one process from what they share."""

    settings: Settings
    ledger: Ledger
    event_loop: EventLoopThread
    children: Children
    instances: Instances
    handoffs: Handoffs
    refreshes: RefreshesInFlight = field(default_factory=RefreshesInFlight)

    def revision(
        self, bundle: Bundle, ref: str | None, *, steps_now: StepsNow, checkout: Checkout | None = None
    ) -> Revision:
        """Make one revision; the Steps of its agents' entries are opened by ``steps_now``.

        The revision closes ``checkout``, the files of the bundle; if this raises, the caller does.

        Raises:
            ConfigError: the bundle has no such Swarm, or its OAuthApps cannot be used.
        """
        settings, ledger = self.settings, self.ledger
        registry = make_registry(settings, bundle, self.children)
        workdirs = InstanceWorkdirs(_workdirs(settings, bundle), self.instances)
        changes = BundleChanges(settings, ledger, bundle, workdirs, lambda: extensions.services.events, ref)
        oauth = make_oauth(settings, bundle, ledger.redis, self.refreshes)
        extensions = make_extensions(
            bundle, registry, self.event_loop, ledger, oauth=oauth, swarm_bundle_for=changes.of
        )
        steps = make_steps(ledger, registry, extensions.services, self.event_loop, bundle_ref=ref)
        desk = InstanceService(self.instances, _workdirs(settings, bundle))
        colleagues = Colleagues(_swarm(settings, bundle), self.handoffs, desk, steps_now, ref)
        executor = make_executor(settings, registry, extensions.services, colleagues, self.instances, steps)
        parts = (registry, extensions, steps, executor, self.children)
        return Revision(ref, bundle, *parts, EntryModules(bundle.root), checkout)


def make_registry(settings: Settings, bundle: Bundle, children: Children) -> Registry:
    """Make the registry of a bundle, the system's own tools included."""
    isolation = Isolation(children, settings.help_url)
    is_open = bundle.swarm(settings.swarm).spec.policy.tool_calls.allow == "registry"
    return Registry(bundle, isolation, system_tools(settings.max_output_bytes), is_open=is_open)


def make_extensions(
    bundle: Bundle,
    registry: Registry,
    event_loop: EventLoopThread,
    ledger: Ledger | None = None,
    *,
    oauth: WorkerOAuth | None = None,
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle,
) -> ExtensionLoader:
    """Make what loads the extensions of a bundle's agents; none is loaded yet.

    Without a ledger they remember what they do in this process alone; without ``oauth`` there are no tokens.
    ``swarm_bundle_for`` is what tools of the older version change the bundle with, too.
    """
    store = RedisState(ledger.redis, ledger.settings) if ledger else MemoryState()
    events = Events(event_loop.submit)
    parts = (Pipelines(), registry.dynamic, events, store, registry.catalog)
    services = ExtensionServices(*parts, oauth=oauth, swarm_bundle_for=swarm_bundle_for)
    return ExtensionLoader(bundle, services, event_loop, files=registry.files)


def make_steps(
    ledger: Ledger,
    registry: Registry,
    services: ExtensionServices,
    event_loop: EventLoopThread,
    *,
    bundle_ref: str | None = None,
) -> Steps:
    """Make what opens the Steps of a registry's agents, also for producers."""
    settings = ledger.settings
    policy = registry.bundle.swarm(settings.swarm).spec.policy
    tells_change = policy.changesets.emit_revision_changed_event
    store = StepStore(
        ledger.redis, ledger.keys, settings.result_ttl_seconds, remembers_revisions=tells_change
    )
    record = active_revision(ledger, registry.bundle)

    def first_blocks(call: ToolCall) -> list[JsonObject]:
        of_oauth = services.oauth.blocks(call) if services.oauth else []
        return [*of_oauth, *(revision_block(call, store, record, bundle_ref) if tells_change else [])]

    steps = Steps(
        store,
        registry,
        services.pipelines,
        events=services.events,
        event_loop=event_loop,
        terms=StepTerms(policy.max_steps_per_turn, settings.max_args_bytes, settings.help_url),
        first_blocks=first_blocks,
        bundle_ref=bundle_ref,
    )
    registry.add_system_tool(step_tool(steps.open))
    return steps


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
    swarm = registry.bundle.swarm(settings.swarm)
    means = V1Means(services.events, services.oauth, services.swarm_bundle_for)
    views = Views(registry, swarm, means, steps)
    services.pipelines.v1.made_by = views
    contexts = ContextFactory(
        workdirs,
        call_timeout_seconds=settings.call_timeout_seconds,
        colleagues=colleagues,
        public_url=settings.public_url,
        older=views.tool_context,
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
        suspension=Suspension(swarm.spec.policy.tool_calls.approval, settings.result_ttl_seconds),
        help_url=settings.help_url,
    )


def active_revision(ledger: Ledger, bundle: Bundle) -> ActiveRevision:
    """Return the record of which revision of a bundle is active."""
    return ActiveRevision(ledger.redis, ledger.keys, workspace_of(bundle, ledger.settings))


def _workdirs(settings: Settings, bundle: Bundle) -> Workdirs:
    return Workdirs(settings.state_root_path, workspace_of(bundle, settings))


def _swarm(settings: Settings, bundle: Bundle) -> Swarm:
    swarm = bundle.swarm(settings.swarm)
    return Swarm(
        name=swarm.name,
        entry_agent=swarm.spec.entry_agent.name,
        agents=bundle.agent_names(settings.swarm),
        most_hops=settings.max_handoff_depth,
    )
