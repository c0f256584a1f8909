"""One revision of the bundle, as a worker process runs it: put together here, explicitly."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from broker_config.settings import Settings
from goondan_tasks.agents.instances import Instances
from goondan_tasks.bundle import Bundle
from goondan_tasks.entry import EntryModules, handlers_in
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.messages import JsonObject, ToolCall
from goondan_tasks.names import EVENT_TOOL
from goondan_tasks.oauth.refresh import RefreshesInFlight
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import Checkout
from goondan_tasks.revisions.workspace import workspace_of
from goondan_tasks.steps.store import StepStore
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
from workers.instances.instance_workdirs import InstanceWorkdirs
from workers.instances.instances import InstanceDesk
from workers.instances.outputs import Outputs
from workers.instances.workdir import Workdirs
from workers.oauth import WorkerOAuth, make_oauth
from workers.processes.children import Children
from workers.processes.isolation import Isolation
from workers.revisions.bundle_changes import BundleChanges
from workers.revisions.revision_block import RevisionBlock
from workers.suspension import Suspension
from workers.tools.registry import Registry
from workers.tools.system_tools import system_tools
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.step_tool import step_tool
from workers.turns.steps import Steps, StepTerms
from workers.turns.turns import Turns
from workers.v1.means import V1Means
from workers.v1.views import Views


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision: its tools, its extensions, and what runs calls with them."""

    #: its name (see :class:`~goondan_tasks.revisions.bundle_ref.BundleRef`); ``None`` where revisions are
    #: not followed: the worker runs its bundle as it was when the worker started
    ref: str | None
    bundle: Bundle
    registry: Registry
    extensions: ExtensionLoader
    steps: Steps
    executor: Executor
    children: Children
    modules: EntryModules
    #: its files; ``None`` if they are nobody's to remove
    checkout: Checkout | None

    def try_out(self, agents: Iterable[str]) -> None:
        """Import the files of agents in a child process first: whatever that does, this one goes on.

        They are their entries, extensions and tools; those of isolated tools are not for this process.

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
        """Load the entries and extensions of agents that this process serves; those it lacks are left out.

        Raises:
            ConfigError: one of them cannot be used.
        """
        present = [agent for agent in agents if agent in self.bundle.agents]
        for agent in filter(self.registry.handles_events, present):
            self.registry.tool(agent, EVENT_TOOL)
        for agent in present:
            self.extensions.load(agent)

    def load_tools(self, agents: Iterable[str]) -> None:
        """Import the files of these agents' tools, which otherwise their first calls do.

        Those of isolated tools are not for this process.

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
        """Let go of all that is this revision's alone: none of its calls runs, and none will.

        Its extensions hear of it, and have some seconds; then what they registered is gone, the children that
        waited for its isolated tools have ended, its modules are forgotten, and its files may be removed.
        One that has been prepared by half may be closed, too. This blocks; a second time does nothing.
        """
        self.extensions.unload()
        self.children.end_below(self.bundle.root.resolve())
        self.modules.close()
        if self.checkout is not None:
            self.checkout.close()


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all revisions share in one process, and are made with."""

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
        """Put one revision together; the Steps of its agents' entries are opened by ``steps_now``.

        The revision closes ``checkout``, in which the bundle is; if there comes to be none, the caller does.

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
        desk = InstanceDesk(self.instances, _workdirs(settings, bundle))
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
    of_oauth = services.oauth.blocks if services.oauth else _no_blocks
    change = RevisionBlock(store, active_revision(ledger, registry.bundle), bundle_ref)
    of_change = change.of if tells_change else _no_blocks
    steps = Steps(
        store,
        registry,
        services.pipelines,
        events=services.events,
        event_loop=event_loop,
        terms=StepTerms(policy.max_steps_per_turn, settings.max_args_bytes, settings.help_url),
        first_blocks=lambda call: [*of_oauth(call), *of_change(call)],
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


def _no_blocks(_: ToolCall) -> list[JsonObject]:
    return []


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
