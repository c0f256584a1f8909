"""Which revision of a bundle is active: one record in Redis for all workers of a workspace.

Each commit proposes its revision. The first worker that has loaded it makes it active; a worker that cannot
load it withdraws it, with the reason. So a revision that does not load never becomes active, or does not stay
active (000 §12.4; DESIGN §6).
"""

import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, cast

from pydantic import Field
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.keys import Keys
from broker_config.refusals import is_script_fault
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.contract.events import SYSTEM, system_event
from goondan_tasks.contract.messages import AgentEvent, JsonObject, ToolCall, Versioned, WireModel

#: after this many loads that ended their worker, a revision is not loaded again
MOST_LOST_LOADS = 2
#: how long the claim on a load holds without renewal: importing a large C library may block all threads
LOAD_LEASE_SECONDS = 15
#: how many replaced revisions are remembered
MOST_ABANDONED = 16
#: the start of refs of uncommitted files
UNCOMMITTED: Final = "sha256:"
#: how long the record outlives the last worker that follows it
TTL_SECONDS = 7 * 86_400
#: how often a waiting command looks
LOOK_SECONDS = 0.2

#: ``proposed``: no worker has loaded it yet. ``failed``: one could not, and it was withdrawn.
#: ``superseded``: another one was proposed after it. ``unfollowed``: no worker follows revisions.
ActivationStatus = Literal["active", "proposed", "failed", "superseded", "unfollowed"]

CHANGED: Final = "swarmBundle.revisionChanged"
FAILED: Final = "changeset.failed"


class RevisionChange(WireModel):
    """A change from one revision to another, and its author: the payload of the event about it."""

    type: Literal["swarmBundle.revisionChanged"] = CHANGED
    previous_ref: str | None = None
    new_ref: str
    changeset_id: str | None = None
    #: ``{filesChanged, filesAdded, filesDeleted, filesLeftOut?}``
    summary: JsonObject | None = None
    #: ISO 8601
    timestamp: str
    #: the agent, and its instance, that committed it; ``None`` for a person
    agent_name: str | None = None
    instance_key: str | None = None


class RevisionFailure(WireModel):
    """The reason why a revision is not active."""

    ref: str
    code: str
    reason: str
    worker: str
    #: ISO 8601
    timestamp: str
    #: the change that failed; ``None`` for the first revision
    change: RevisionChange | None = None


class RevisionState(Versioned):
    """The record in Redis."""

    #: the ref of the active revision
    active: str
    #: the change that made it active; ``None`` for the first one
    change: RevisionChange | None = None
    #: the change that becomes active at the next Safe Point
    proposed: RevisionChange | None = None
    #: the last revision that could not be loaded
    failed: RevisionFailure | None = None
    #: commits that were active, the latest last: a starting worker proposes none of them
    abandoned: tuple[str, ...] = Field(default=(), alias="left")


class Activation(WireModel):
    """The state of a proposed revision among the workers."""

    status: ActivationStatus
    ref: str
    #: the code and message of the failure
    code: str | None = None
    reason: str | None = None
    #: the live workers that still run another revision although this one is active
    behind: tuple[str, ...] | None = None

    @classmethod
    def of(cls, ref: str, state: RevisionState | None) -> "Activation":
        """Derive it from the record."""
        if state is None:
            return cls(status="unfollowed", ref=ref)
        if state.active == ref:
            return cls(status="active", ref=ref)
        if state.proposed is not None and state.proposed.new_ref == ref:
            return cls(status="proposed", ref=ref)
        if state.failed is not None and state.failed.ref == ref:
            return cls(status="failed", ref=ref, code=state.failed.code, reason=state.failed.reason)
        return cls(status="superseded", ref=ref)

    @property
    def is_everywhere(self) -> bool:
        """Whether waiting is over: the proposal is decided, and no live worker is behind."""
        return self.status != "proposed" and not self.behind


class UnreadableRevisionsError(BundleRevisionUnavailableError, ValueError):
    """The record of the active revision cannot be read."""

    suggestion = (
        "Upgrade goondan-workers here if the workers have a newer version. Otherwise remove the key with "
        "redis-cli DEL: the workers begin again with the revision that they run."
    )


Edit = Callable[[RevisionState | None], RevisionState | None]


class ActiveRevision:
    """The record of one workspace.

    Every method takes one round trip, and raises RedisError if that fails, or UnreadableRevisionsError if the
    record is damaged or was written by a newer version.
    """

    def __init__(self, redis: Redis, keys: Keys, workspace: str) -> None:
        self._redis = redis
        self._key = keys.revision(workspace)
        self._load_key = partial(keys.revision_load, workspace)

    def state(self) -> RevisionState | None:
        """Return the record; ``None`` if no worker follows revisions."""
        return self._read(self._redis)

    def _read(self, redis: Redis) -> RevisionState | None:
        try:
            stored = cast("bytes | None", redis.get(self._key))
            return None if stored is None else RevisionState.from_wire(serializer.decode(stored))
        except (ResponseError, ValueError) as error:
            if isinstance(error, ResponseError) and not is_script_fault(error):
                raise
            raise UnreadableRevisionsError(
                f"The record of the bundle's revisions, the Redis key {self._key!r}, cannot be read here: "
                "it is damaged, or of a newer version."
            ) from error

    def begin(self, ref: str) -> RevisionState:
        """Make a revision active if none is; return the record."""
        _, stored = self._edited(lambda state: state or RevisionState(active=ref))
        return stored or RevisionState(active=ref)

    def propose(self, change: RevisionChange) -> None:
        """Ask for another revision; a later proposal replaces an earlier one."""

        def proposed(state: RevisionState | None) -> RevisionState | None:
            if state is None or state.active == change.new_ref:
                return state and state.model_copy(update={"proposed": None})
            change_here = change.model_copy(update={"previous_ref": state.active})
            return state.model_copy(update={"proposed": change_here})

        self._edited(proposed)

    def activate(self, ref: str) -> RevisionChange | None:
        """Make the proposed revision active; return the change if this call did so."""

        def activated(state: RevisionState | None) -> RevisionState | None:
            if state is None or state.proposed is None or state.proposed.new_ref != ref:
                return state
            failed = state.failed if state.failed and state.failed.ref != ref else None
            now = {"active": ref, "change": state.proposed, "proposed": None, "failed": failed}
            return state.model_copy(update={**now, "abandoned": _abandoned(state, ref)})

        before, after = self._edited(activated)
        return after.change if after and after != before else None

    def withdraw(self, failure: RevisionFailure, *, is_proposed: bool = False) -> RevisionFailure | None:
        """Withdraw a revision that cannot be loaded; if it is active, the one before it becomes active again.

        A proposal (``is_proposed``) is left alone if another worker has made it active. Return the recorded
        failure, with its change, if this call recorded it.
        """

        def withdrawn(state: RevisionState | None) -> RevisionState | None:
            if state is None:
                return None
            proposed, change = state.proposed, state.change
            made = next((it for it in (proposed, change) if it and it.new_ref == failure.ref), None)
            noted = state.model_copy(update={"failed": failure.model_copy(update={"change": made})})
            if made is not None and made is proposed:
                return noted.model_copy(update={"proposed": None})
            if is_proposed:
                decided = {state.active, state.failed.ref if state.failed else None}
                return state if failure.ref in decided else noted
            if made is not None and state.active == failure.ref and made.previous_ref is not None:
                return noted.model_copy(update={"active": made.previous_ref, "change": None})
            return noted

        before, after = self._edited(withdrawn)
        return after.failed if after and after != before else None

    def claim_load(self, ref: str, worker_id: str) -> int | None:
        """Claim the load of a revision; return how many loads have begun and not ended, this one included.

        Return ``None`` if another worker is loading it. The claim ends with :meth:`end_load`, or
        LOAD_LEASE_SECONDS after the last :meth:`renew_load`; then the worker counts as dead. After
        MOST_LOST_LOADS such deaths the count starts again, and the caller withdraws the revision.
        """
        claim, begun = self._load_keys(ref)
        if not self._redis.set(claim, worker_id, nx=True, ex=LOAD_LEASE_SECONDS):
            return None
        with self._redis.pipeline() as pipe:
            pipe.incr(begun)
            pipe.expire(begun, TTL_SECONDS)
            count = int(pipe.execute()[0])
        if count > MOST_LOST_LOADS:
            self._redis.delete(begun)
        return count

    def renew_load(self, ref: str) -> None:
        self._redis.expire(self._load_keys(ref)[0], LOAD_LEASE_SECONDS)

    def end_load(self, ref: str) -> None:
        """Give up the claim on a load that has ended, successfully or not."""
        self._redis.delete(*self._load_keys(ref))

    def is_loading(self, ref: str) -> bool:
        """Return whether a worker has the claim on a load."""
        return bool(self._redis.exists(self._load_keys(ref)[0]))

    def _load_keys(self, ref: str) -> tuple[str, str]:
        claim = self._load_key(ref)
        return claim, f"{claim}:begun"

    def end(self, seen: RevisionState) -> None:
        """Remove the record, unless it has changed since it was ``seen``."""
        self._edited(lambda state: None if state == seen else state)

    def keep(self) -> None:
        """Renew the record's time to live."""
        self._redis.expire(self._key, TTL_SECONDS)

    def _edited(self, edit: Edit) -> tuple[RevisionState | None, RevisionState | None]:
        """Edit the record, repeatedly if others change it; return it as it was and as it is."""
        edited: list[RevisionState | None] = []

        def transaction(pipe: "Pipeline") -> None:
            before = self._read(pipe)
            after = edit(before)
            edited[:] = before, after
            pipe.multi()
            if after is None:
                pipe.delete(self._key)
            elif after != before:
                pipe.set(self._key, serializer.encode(after.to_wire()), ex=TTL_SECONDS)

        self._redis.transaction(transaction, self._key)
        return edited[0], edited[1]


def await_activation(look: Callable[[], Activation], seconds: float) -> Activation:
    """Call ``look`` until all live workers have followed or the time is over; raises what ``look`` raises."""
    deadline = time.monotonic() + seconds
    while True:
        activation = look()
        left = deadline - time.monotonic()
        if activation.is_everywhere or left <= 0:
            return activation
        time.sleep(min(LOOK_SECONDS, left))


def _abandoned(state: RevisionState, ref: str) -> tuple[str, ...]:
    """Return the abandoned commits once ``ref`` is active.

    There are none while uncommitted files are active: then the folder decides, and undoing an edit brings its
    commit back.
    """
    if ref.startswith(UNCOMMITTED):
        return ()
    behind = [*state.abandoned, *([] if state.active.startswith(UNCOMMITTED) else [state.active])]
    return tuple(one for one in behind if one != ref)[-MOST_ABANDONED:]


def revision_event(change: RevisionChange) -> ToolCall | None:
    """Return the event for the instance that committed the change; ``None`` if no agent did.

    Its identity is that of the change: every worker that changes its revision sends it, and it arrives once.
    """
    return _event(CHANGED, change, change.to_wire(), change.timestamp)


def failure_event(failure: RevisionFailure) -> ToolCall | None:
    """Return the event that tells the instance why its change is not active; ``None`` if no agent made it."""
    change = failure.change
    return _event(FAILED, change, failure.to_wire(), failure.timestamp) if change else None


def _event(kind: str, change: RevisionChange, told: JsonObject, timestamp: str) -> ToolCall | None:
    if change.agent_name is None or change.instance_key is None:
        return None
    parts = (change.previous_ref, change.new_ref, change.timestamp, change.agent_name, change.instance_key)
    trace_id = uuid.uuid5(uuid.NAMESPACE_URL, f"goondan:{kind} {parts!r}").hex
    event = AgentEvent(
        id=f"revision-{trace_id}",
        type=kind,
        created_at=timestamp,
        trace_id=trace_id,
        input=told,
        instance_key=change.instance_key,
        source=SYSTEM,
    )
    return system_event(event, change.agent_name, correlation_id=trace_id)
