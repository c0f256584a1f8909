"""How the agents of one revision change their bundle: its repository, the rules, who is told (000 §12.4)."""

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from redis.exceptions import RedisError

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.api import AgentBundle
from goondan_tasks.changesets.changeset_error import ChangesetError
from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.party import FOLDER, Party
from goondan_tasks.changesets.policy import ChangesetRules
from goondan_tasks.changesets.proposer import Proposer
from goondan_tasks.changesets.redis_lock import RedisLock
from goondan_tasks.changesets.results import CommitResult
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.instances.table import encoded
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.messages import ToolCall
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.source import RevisionSource
from goondan_tasks.revisions.workspace import workspace_of
from workers.extensions.events import Events
from workers.instances.workdirs import InstanceWorkdirs

logger = structlog.get_logger(__name__)

#: what the agent's extensions hear of a commit, by its status
_EVENTS = {
    "ok": "changeset.committed",
    "rejected": "changeset.rejected",
    "conflict": "changeset.conflict",
    "failed": "changeset.failed",
}


@dataclass(frozen=True, slots=True)
class BundleChanges:
    """Makes the :class:`~goondan_tasks.changesets.api.AgentBundle` of each call that asks for one."""

    settings: Settings
    ledger: Ledger
    #: whose rules hold; its files may be a checkout, the changesets are those of ``settings.bundle``
    bundle: Bundle
    workdirs: InstanceWorkdirs
    #: where the agents' extensions hear of it
    events: Callable[[], Events]
    #: the revision, where revisions are followed
    ref: str | None = None

    def of(self, call: ToolCall) -> AgentBundle:
        """Return the bundle as the agent of a call may change it, in its instance; this blocks.

        Raises:
            ChangesetError, GitError: the bundle is in no repository that can be used.
            ToolError, OSError: there is no way to the instance's workdir.
        """
        source = self._source()
        workspace = workspace_of(self.bundle, self.settings)
        redis, keys = self.ledger.redis, self.ledger.keys
        active = ActiveRevision(redis, keys, workspace)
        locks = [RedisLock(redis, keys.commit_lock(encoded(workspace)))]
        announce, swarm, help_url = Proposer(active).announce, self.settings.swarm, self.settings.help_url
        return AgentBundle(
            Changesets.of(source, locks, announce, swarm=swarm, help_url=help_url),
            self._party(call),
            lambda: self._active_ref(active, source),
            lambda result: self._tell(call, result),
            lambda ref: self._failure_of(ref, active),
        )

    def _source(self) -> RevisionSource:
        if self.settings.bundle is None:
            raise ChangesetError("The worker has no bundle of its own.", code="GIT_ERROR")
        return RevisionSource.of(self.settings.bundle, self.settings.bundle_remote)

    def _party(self, call: ToolCall) -> Party:
        rules = ChangesetRules.of(self.bundle, call.agent_name, swarm=self.settings.swarm)
        workdir = self.workdirs.open(call.agent_name, call.instance_key)
        return Party(workdir / FOLDER, rules, call.agent_name, call.instance_key)

    def _active_ref(self, active: ActiveRevision, source: RevisionSource) -> str:
        try:
            state = active.state()
        except RedisError as error:
            raise BrokerUnreachableError(f"The active revision is not known: {error}") from error
        return state.active if state else self.ref or str(source.current())

    def _failure_of(self, ref: str, active: ActiveRevision) -> str | None:
        try:
            state = active.state()
        except RedisError:
            return None
        if state is None or state.failed is None or state.failed.ref != ref:
            return None
        return (
            f"The workers run an earlier revision, because they cannot load this one: {state.failed.code}: "
            f"{state.failed.reason} Mend that first."
        )

    def _tell(self, call: ToolCall, result: CommitResult) -> None:
        event = _EVENTS[result.status]
        why = result.error.message if result.error else result.warning
        names = {"agent": call.agent_name, "instance": call.instance_key, "changeset": result.changeset_id}
        logger.info(event, **names, ref=result.new_ref, reason=why)
        self.events().emit(call.agent_name, event, result.to_wire())
