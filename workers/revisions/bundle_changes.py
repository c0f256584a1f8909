"""How the agents of a revision change the bundle (000 §12.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.changesets import Changesets, propose_commit, redis_lock
from goondan_tasks.changesets.policy import FOLDER, ChangesetRules, Principal
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import JsonObject, ToolCall, iso_time, wall_clock
from goondan_tasks.history import StepStore
from goondan_tasks.instances.table import encoded
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.revisions.active import CHANGED, ActiveRevision, RevisionChange, RevisionState
from goondan_tasks.revisions.checkouts import RevisionSource
from workers.extensions.events import EventListeners
from workers.instances.workdirs import InstanceWorkdirs

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
