"""How the agents of one revision change their bundle: repository, rules and events (000 §12.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.api import ChangesetError
from goondan_tasks.changesets.changesets import Changesets, propose_commit, redis_lock
from goondan_tasks.changesets.policy import FOLDER, ChangesetRules, Principal
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.instances.table import encoded
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.messages import ToolCall
from goondan_tasks.revisions.active import ActiveRevision, RevisionState
from goondan_tasks.revisions.bootstrap import workspace_of
from goondan_tasks.revisions.checkouts import RevisionSource
from workers.extensions.events import Events
from workers.instances.workdirs import InstanceWorkdirs

logger = structlog.get_logger(__name__)

#: the event that the agent's extensions hear of a commit, by its status
_EVENTS = {
    "ok": "changeset.committed",
    "rejected": "changeset.rejected",
    "conflict": "changeset.conflict",
    "failed": "changeset.failed",
}


@dataclass(frozen=True, slots=True)
class AgentBundle:
    """A :class:`~goondan_tasks.changesets.api.SwarmBundleApi` that blocks."""

    changesets: Changesets
    principal: Principal
    active: ActiveRevision
    events: Events
    #: the revision of the call; ``None`` where none is followed
    ref: str | None = None

    def open_changeset(self, reason: str | None = None) -> dict[str, Any]:
        """Open a changeset in the instance's workdir; its hint warns of a base that failed to load."""
        opened = self.changesets.open(self.principal, reason or "")
        try:
            state = self.active.state()
        except RedisError:
            state = None
        hint = opened.hint.model_copy(update={"warning": _warning(opened.base_ref, state)})
        return opened.model_copy(update={"hint": hint}).to_wire()

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> dict[str, Any]:
        """Commit a changeset of this instance, and tell the agent's extensions."""
        result = self.changesets.commit(changeset_id, message or "", self.principal)
        who, event = self.principal, _EVENTS[result.status]
        why = result.error.message if result.error else result.warning
        names = {"agent": who.agent, "instance": who.instance_key, "changeset": result.changeset_id}
        logger.info(event, **names, ref=result.new_ref, reason=why)
        self.events.emit(who.agent or "", event, result.to_wire())
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
    #: whose rules apply; its files may be a checkout, the changesets are those of ``settings.bundle``
    bundle: Bundle
    workdirs: InstanceWorkdirs
    events: Callable[[], Events]
    #: the revision; ``None`` where none is followed
    ref: str | None = None

    def of(self, call: ToolCall) -> AgentBundle:
        """Return the bundle as the agent of a call may change it, in its instance; this blocks.

        Raises:
            ChangesetError, GitError: the bundle is in no repository that can be used.
            ToolError, OSError: the instance's workdir cannot be opened.
        """
        settings, redis, keys = self.settings, self.ledger.redis, self.ledger.keys
        if settings.bundle is None:
            raise ChangesetError("The worker has no bundle of its own.", code="GIT_ERROR")
        workspace = workspace_of(self.bundle, settings)
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
        f"{failed.reason} Correct that first."
    )
