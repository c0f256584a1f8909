"""One revision of the bundle in a worker process, and how its agents change the bundle (000 §12.4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.authoring.entry import EntryModules, handlers_in
from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.changesets import Changesets, propose_commit, redis_lock
from goondan_tasks.changesets.policy import FOLDER, ChangesetRules, Principal
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import JsonObject, ToolCall, iso_time, wall_clock
from goondan_tasks.contract.names import EVENT_TOOL
from goondan_tasks.history import StepStore
from goondan_tasks.instances.table import Instances, encoded
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.javascript import is_javascript
from goondan_tasks.oauth.manager import RefreshesInFlight
from goondan_tasks.revisions.active import CHANGED, UNCOMMITTED, ActiveRevision, RevisionChange, RevisionState
from goondan_tasks.revisions.checkouts import Checkout, RevisionSource
from workers.agents.call_services import StepsNow, Swarm
from workers.agents.handoffs import Handoffs
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
from workers.thinking.agent_contexts import AgentContexts
from workers.thinking.model_calls import model_tool
from workers.thinking.model_providers import ModelProviders
from workers.thinking.turn import Thinking
from workers.tools.registry import Registry
from workers.tools.system_tools import system_tools
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.steps import Steps, StepTerms, step_tool
from workers.v1.extension_api import v1_api
from workers.v1.views import Views

logger = structlog.get_logger(__name__)

#: the event emitted to the agent's extensions for a commit, by its status
_EVENTS = {
    "ok": "changeset.committed",
    "rejected": "changeset.rejected",
    "conflict": "changeset.conflict",
    "failed": "changeset.failed",
}


@dataclass(frozen=True, slots=True)
class AgentBundle:
    """The blocking :class:`~goondan_tasks.authoring.changesets_api.SwarmBundleApi` of one call."""

    changesets: Changesets
    principal: Principal
    active: ActiveRevision
    events: EventListeners
    #: the call's revision; ``None`` where none is followed
    ref: str | None = None

    def open_changeset(self, reason: str | None = None) -> dict[str, Any]:
        """Open a changeset in the instance's workdir; its hint warns if the base failed to load."""
        opened = self.changesets.open(self.principal, reason or "")
        try:
            state = self.active.state()
        except RedisError:
            state = None
        hint = opened.hint.model_copy(update={"warning": _warning(opened.base_ref, state)})
        return opened.model_copy(update={"hint": hint}).to_wire()

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> dict[str, Any]:
        """Commit a changeset of this instance, and tell the agent's extensions."""
        principal = self.principal
        result = self.changesets.commit(changeset_id, message or "", principal)
        event = _EVENTS[result.status]
        logger.info(
            event,
            agent=principal.agent,
            instance=principal.instance_key,
            changeset=result.changeset_id,
            ref=result.new_ref,
            reason=result.error.message if result.error else result.warning,
        )
        self.events.emit(principal.agent or "", event, result.to_wire())
        return result.to_wire()

    def get_active_ref(self) -> str:
        """Return the ref of the active revision; raises BrokerUnreachableError."""
        try:
            state = self.active.state()
        except RedisError as error:
            raise BrokerUnreachableError(f"The active revision is not known: {error}") from error
        return state.active if state else self.ref or str(self.changesets.source.current())


@dataclass(frozen=True, slots=True)
class BundleChanges:
    """Makes the :class:`AgentBundle` of a call."""

    settings: Settings
    ledger: Ledger
    #: the bundle whose rules apply, maybe a checkout; changesets are of ``settings.bundle``
    bundle: Bundle
    workdirs: InstanceWorkdirs
    events: Callable[[], EventListeners]
    #: the revision of ``bundle``; ``None`` where none is followed
    ref: str | None = None

    def of(self, call: ToolCall) -> AgentBundle:
        """Return the API with which a call's agent changes the bundle, in its instance; this blocks.

        Raises:
            ChangesetError, GitError: the bundle is not in a usable repository.
            ToolError, OSError: the instance's workdir cannot be opened.
        """
        settings, redis, keys = self.settings, self.ledger.redis, self.ledger.keys
        if settings.bundle is None:
            raise ChangesetError("The worker has no bundle of its own.", code="GIT_ERROR")
        workspace = self.bundle.workspace_name(settings.workspace, settings.swarm)
        active = ActiveRevision(redis, keys, workspace)
        changesets = Changesets.of(
            RevisionSource.of(settings.bundle, settings.bundle_remote),
            [partial(redis_lock, redis, keys.commit_lock(encoded(workspace)))],
            partial(propose_commit, active),
            swarm=settings.swarm,
            help_url=settings.help_url,
        )
        rules = ChangesetRules.of(self.bundle, call.agent_name, swarm=settings.swarm)
        workdir = self.workdirs.open(call.agent_name, call.instance_key)
        principal = Principal(workdir / FOLDER, rules, call.agent_name, call.instance_key)
        return AgentBundle(changesets, principal, active, self.events(), self.ref)


def _warning(ref: str, state: RevisionState | None) -> str | None:
    failed = state.failed if state else None
    if failed is None or failed.ref != ref:
        return None
    return (
        f"The workers run an earlier revision, because they cannot load this one: {failed.code}: "
        f"{failed.reason} Fix that first."
    )


def revision_block(
    call: ToolCall, store: StepStore, record: ActiveRevision, ref: str | None
) -> list[JsonObject]:
    """Return the block that tells a model that its agent has changed (``emitRevisionChangedEvent``).

    Each instance gets it once, in its next Step, however long it was idle. ``store`` remembers the revisions
    of Steps; ``ref`` is the revision of this Step, ``None`` where none is followed.

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
    """One revision: its tools, its extensions and their executor."""

    #: its :class:`~goondan_tasks.revisions.content.BundleRef`; ``None`` where revisions are not followed and
    #: the worker keeps the bundle it started with
    ref: str | None
    bundle: Bundle
    registry: Registry
    extensions: ExtensionLoader
    steps: Steps
    executor: Executor
    models: ModelProviders
    children: Children
    hosts: Hosts
    modules: EntryModules
    event_loop: EventLoopThread
    #: its files; ``None`` if they are in the bundle's own folder
    checkout: Checkout | None
    #: whether goondan dev imported its entries in a child process before it proposed the revision
    is_tried: bool = False

    def try_out(self, agents: Iterable[str]) -> None:
        """Import the entries, extensions and tools of agents in a child process, in case one kills it.

        Isolated tools are left out, because they never run in this process. Files are tried once.

        Raises:
            EntryError: importing a file kills the process or takes too long.
            BundleRevisionUnavailableError: no process can be started for now.
        """
        if self.is_tried:
            return
        root, files = self.bundle.root.resolve(), list[Path]()
        for agent in filter(self.bundle.agents.__contains__, agents):
            entry = self.bundle.agents[agent].spec.entry
            files += [(root / entry).resolve()] if entry else []
            files += [extension.entry_path for extension in self.bundle.bound_extensions(agent)]
            files += self._tool_files(agent)
        # built-in files come with the worker, and JavaScript is imported by a host process
        own = (file for file in files if file.is_relative_to(root) and not is_javascript(file))
        self.registry.files.try_out(own)

    def _tool_files(self, agent: str) -> list[Path]:
        tools = (self.registry.catalog(agent) or {}).values()
        return [
            tool.entry_path
            for tool in tools
            if tool.export.isolation != "process" and not is_javascript(tool.entry_path)
        ]

    def prepare(self, agents: Iterable[str]) -> None:
        """Load the entries and extensions of agents; agents that the revision lacks are skipped.

        Raises:
            ConfigError: an entry or extension cannot be used.
        """
        present = [agent for agent in agents if agent in self.bundle.agents]
        tools = [tool for agent in present for tool in self.bundle.bound_tools(agent).values()]
        if any(tool.export.sandbox for tool in tools):
            sandbox.require()
        for agent in filter(self.registry.handles_events, present):
            self.registry.tool(agent, EVENT_TOOL)
        for agent in present:
            self.extensions.load(agent)
        self.models.warm_up(present)

    def load_tools(self, agents: Iterable[str]) -> None:
        """Import the files of agents' tools, except isolated ones, ahead of their first calls.

        Raises:
            EntryError: a file cannot be imported, or takes too long.
            ToolNotFoundError: a file has no handler for an export.
        """
        for agent in agents:
            for file in self._tool_files(agent):
                self.registry.files.load(file, handlers_in)
            for name in self.registry.catalog(agent) or {}:
                self.registry.tool(agent, name)

    def close(self) -> None:
        """Release what belongs to this revision alone; none of its calls may still run. This blocks.

        Its extensions get an event and a few seconds. Then their registrations are removed, the processes of
        its isolated tools ended and its modules forgotten, and its files may be removed. A partly prepared
        revision can be closed, too; a second call does nothing.
        """
        self.extensions.unload()
        self.children.end_below(self.bundle.root.resolve())
        if not self.hosts.is_empty:
            self.event_loop.submit(self.hosts.close())
        if self.models.by_model:
            self.event_loop.submit(self.models.close())
        self.modules.close()
        if self.checkout is not None:
            self.checkout.close()


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
        models = ModelProviders(bundle)
        thinking = Thinking(
            bundle,
            models,
            policy.budget,
            ledger.redis,
            ledger.keys,
            settings.queue_timeout_seconds,
            settings.result_ttl_seconds,
        )
        for provider in models.by_model.values():
            registry.add_system_tool(model_tool(provider, ledger.redis, ledger.keys))
        agents = AgentContexts(swarm, self.handoffs, instance_service, steps_now, ref, thinking, workdirs)
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
