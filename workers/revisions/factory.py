"""Makes the revisions of the bundle: a part of the composition root, which only that root imports."""

from dataclasses import dataclass, field

from broker_config.settings import Settings
from goondan_tasks.authoring.entry import EntryModules
from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.messages import JsonObject, ToolCall
from goondan_tasks.history import StepStore
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.oauth.manager import RefreshesInFlight
from goondan_tasks.revisions.active import UNCOMMITTED, ActiveRevision
from goondan_tasks.revisions.checkouts import Checkout
from workers.agents.call_services import Swarm
from workers.agents.entry_steps import StepsNow
from workers.agents.handoffs import Handoffs
from workers.agents.replies import Replies
from workers.concurrency.event_loop import EventLoopThread
from workers.contexts import ContextFactory
from workers.endings import Endings
from workers.executor import Executor
from workers.extensions.api import ExtensionServices
from workers.extensions.events import EventListeners
from workers.extensions.loader import ExtensionLoader
from workers.extensions.pipelines import AgentPipelines
from workers.extensions.services import SwarmBundleFor, no_swarm_bundle
from workers.extensions.state import MemoryState, RedisState
from workers.instances.outputs import Outputs
from workers.instances.service import InstanceService
from workers.instances.workdirs import InstanceWorkdirs, Workdirs
from workers.javascript.tools import HostedTools, Hosts
from workers.oauth import WorkerOAuth, make_oauth
from workers.processes.confinement import Confinement
from workers.processes.frames import ROOM_BYTES
from workers.processes.isolation import Children, Isolation
from workers.results import Suspension
from workers.revisions.bundle_changes import BundleChanges, revision_block
from workers.revisions.revision import Revision
from workers.thinking.agent_contexts import AgentContexts
from workers.thinking.model_calls import OpenRequests, ask_model_script, model_tool
from workers.thinking.model_providers import ModelProviders
from workers.thinking.turn import Thinking
from workers.tools.registry import Registry
from workers.tools.system_tools import system_tools
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.steps import Steps, StepTerms, step_tool
from workers.v1.extension_api import v1_api
from workers.v1.views import Views


@dataclass(frozen=True, slots=True)
class RevisionFactory:
    """Makes the revisions of one process, which share these parts."""

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
        """Make one revision; ``steps_now`` opens the Steps of its agents' entries.

        The revision closes ``checkout``, its files. If this method raises, the caller must close it.

        Raises:
            ConfigError: the bundle has no such Swarm, or its OAuthApps cannot be used.
        """
        settings, ledger = self.settings, self.ledger
        # its own: the same revision may be loaded again while this one is being closed
        hosts = Hosts()
        registry = make_registry(settings, bundle, self.children, hosts)
        workdirs = InstanceWorkdirs(_workdirs(settings, bundle), self.instances)
        changes = BundleChanges(settings, ledger, bundle, workdirs, lambda: extensions.services.events, ref)
        oauth = make_oauth(settings, bundle, ledger.redis, self.refreshes)
        extensions = make_extensions(
            bundle, registry, self.event_loop, ledger, oauth=oauth, swarm_bundle_for=changes.of
        )
        steps = make_steps(ledger, registry, extensions.services, self.event_loop, bundle_ref=ref)
        policy = bundle.swarm(settings.swarm).spec.policy
        swarm = _swarm(settings, bundle)
        instance_service = InstanceService(
            self.instances, _workdirs(settings, bundle), swarm.agents, policy.spawn
        )
        models, open_requests = ModelProviders(bundle), OpenRequests()
        thinking = Thinking(
            bundle,
            models,
            policy.budget,
            ledger.redis,
            ledger.keys,
            settings.queue_timeout_seconds,
            settings.result_ttl_seconds,
            open_requests,
            ask_model_script(),
        )
        for provider in models.by_model.values():
            registry.add_system_tool(model_tool(provider, ledger.redis, ledger.keys, open_requests))
        replies = Replies(bundle, self.handoffs, ref)
        agents = AgentContexts(
            swarm, self.handoffs, instance_service, steps_now, ref, thinking, workdirs, replies
        )
        executor = make_executor(
            settings, registry, extensions.services, self.event_loop, workdirs, steps, agents
        )
        return Revision(
            ref,
            bundle,
            registry=registry,
            extensions=extensions,
            steps=steps,
            executor=executor,
            models=models,
            children=self.children,
            hosts=hosts,
            modules=EntryModules(bundle.root),
            event_loop=self.event_loop,
            checkout=checkout,
            is_tried=settings.dev == "on" and ref is not None and ref.startswith(UNCOMMITTED),
        )


def make_registry(settings: Settings, bundle: Bundle, children: Children, hosts: Hosts) -> Registry:
    """Make the registry of a bundle, system tools included."""
    confinement = Confinement(bundle, settings.state_root_path)
    most = ROOM_BYTES + 2 * (settings.max_args_bytes + settings.max_output_bytes)
    isolation = Isolation(children, settings.help_url, confinement, most)
    hosted = HostedTools(
        hosts,
        bundle.root.resolve(),
        settings.help_url,
        confinement,
        settings.javascript,
        most,
    )
    is_open = bundle.swarm(settings.swarm).spec.policy.tool_calls.allow == "registry"
    return Registry(bundle, isolation, hosted, system_tools(settings.max_output_bytes), is_open=is_open)


def make_extensions(
    bundle: Bundle,
    registry: Registry,
    event_loop: EventLoopThread,
    ledger: Ledger | None = None,
    *,
    oauth: WorkerOAuth | None = None,
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle,
) -> ExtensionLoader:
    """Make the loader of a bundle's extensions; none is loaded yet.

    Without a ledger, their state stays in this process; without ``oauth`` there are no tokens. Tools of the
    older version use ``swarm_bundle_for``, too.
    """
    store = RedisState(ledger.redis, ledger.settings) if ledger else MemoryState()
    events = EventListeners(event_loop.submit)
    parts = (AgentPipelines(), registry.dynamic, events, store, registry.catalog, v1_api)
    services = ExtensionServices(*parts, oauth=oauth, swarm_bundle_for=swarm_bundle_for)
    return ExtensionLoader(bundle, services, event_loop, registry.files, registry.hosted)


def make_steps(
    ledger: Ledger,
    registry: Registry,
    services: ExtensionServices,
    event_loop: EventLoopThread,
    *,
    bundle_ref: str | None = None,
) -> Steps:
    """Make the Steps of a registry's agents, and add the system tool that opens Steps for producers."""
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

    has_blocks = services.oauth is not None or tells_change

    steps = Steps(
        store,
        registry,
        services.pipelines,
        events=services.events,
        event_loop=event_loop,
        terms=StepTerms(policy.max_steps_per_turn, settings.max_args_bytes, settings.help_url),
        first_blocks=first_blocks if has_blocks else None,
        bundle_ref=bundle_ref,
    )
    registry.add_system_tool(step_tool(steps.open, steps.reads))
    return steps


def make_executor(
    settings: Settings,
    registry: Registry,
    services: ExtensionServices,
    event_loop: EventLoopThread,
    workdirs: InstanceWorkdirs | None = None,
    steps: Steps | None = None,
    agents: AgentContexts | None = None,
) -> Executor:
    """Make the executor of a registry; without the last three arguments it needs neither Redis nor Celery."""
    workdirs = workdirs or InstanceWorkdirs(_workdirs(settings, registry.bundle))
    swarm = registry.bundle.swarm(settings.swarm)
    views = Views(registry, swarm, services, steps)
    services.pipelines.v1.made_by = views
    contexts = ContextFactory(
        workdirs,
        call_timeout_seconds=settings.call_timeout_seconds,
        agents=agents,
        public_url=settings.public_url,
        older=views.tool_context,
        confinement=Confinement(registry.bundle, settings.state_root_path),
    )
    outputs = Outputs(workdirs, settings.max_output_bytes, settings.result_ttl_seconds)
    guard, pipelines, events = CatalogGuard(registry, steps), services.pipelines, services.events
    suspension = Suspension(swarm.spec.policy.tool_calls.approval, settings.result_ttl_seconds)
    endings = Endings(registry, guard, outputs, suspension, settings.help_url)
    return Executor(registry, contexts, pipelines, events, endings, event_loop)


def active_revision(ledger: Ledger, bundle: Bundle) -> ActiveRevision:
    """Return the record of the active revision of a bundle's workspace."""
    return ActiveRevision(
        ledger.redis, ledger.keys, bundle.workspace_name(ledger.settings.workspace, ledger.settings.swarm)
    )


def _workdirs(settings: Settings, bundle: Bundle) -> Workdirs:
    return Workdirs(settings.state_root_path, bundle.workspace_name(settings.workspace, settings.swarm))


def _swarm(settings: Settings, bundle: Bundle) -> Swarm:
    swarm = bundle.swarm(settings.swarm)
    return Swarm(
        name=swarm.name,
        entry_agent=swarm.spec.entry_agent.name,
        agents=bundle.agent_names(settings.swarm),
        most_hops=settings.max_handoff_depth,
    )
