"""Which revision of a bundle is active: one record in Redis for all the workers of a workspace.

Whoever commits a change proposes its revision. The first worker that has loaded it makes it active; one that
cannot load it withdraws it, and says why. So a revision that does not load never becomes active, or does not
stay so (000 §12.4; DESIGN §6).
"""

from collections.abc import Callable
from typing import Final, Literal, cast

from pydantic import Field
from redis import Redis
from redis.client import Pipeline

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.messages import JsonObject, Versioned, WireModel

#: so many loadings that end their workers are enough: a revision is not loaded once more
MOST_LOST_LOADINGS = 2
#: so many loadings are noted at a time
MOST_LOADINGS = 8
#: so many that were given up for another one are remembered
MOST_ABANDONED = 16
#: how the refs of what is committed nowhere begin
UNCOMMITTED: Final = "sha256:"
#: how long the record outlives the last sign of life of a worker that follows it
TTL_SECONDS = 7 * 86_400

#: who loads a revision: this worker, another one that lives, or none any more
LoadingTurn = Literal["ours", "theirs", "nobody's"]

CHANGED: Final = "swarmBundle.revisionChanged"
FAILED: Final = "changeset.failed"


class RevisionChange(WireModel):
    """From which revision to which, and by whom: the payload of the event that tells of it."""

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
    """Why a revision is not active."""

    ref: str
    code: str
    reason: str
    worker: str
    #: ISO 8601
    timestamp: str
    #: what it would have changed, and by whom; ``None`` for the first one
    change: RevisionChange | None = None


class RevisionLoading(WireModel):
    """A loading that has begun: who does not end it, has ended with it."""

    ref: str
    #: its process id and host
    worker: str
    #: its ``WorkerRecord.id``, and of which processes its process id is one
    worker_id: str = ""
    place: str = ""
    #: ISO 8601
    since: str
    #: how often it was begun, and not ended
    times: int = 1


class RevisionState(Versioned):
    """What stands in Redis."""

    #: the ref of the active revision
    active: str
    #: what made it active; ``None`` for the first one
    change: RevisionChange | None = None
    #: what is to become active at the next Safe Point
    proposed: RevisionChange | None = None
    #: the last one that could not
    failed: RevisionFailure | None = None
    #: the loadings that have begun, one for each ref
    loading: tuple[RevisionLoading, ...] = ()
    #: the commits that were active and are not, the last one last: a worker that starts proposes none of them
    abandoned: tuple[str, ...] = Field(default=(), alias="left")

    def loading_of(self, ref: str) -> RevisionLoading | None:
        """Return the loading of a revision, if one has begun and not ended."""
        return next((one for one in self.loading if one.ref == ref), None)


class UnreadableRevisionsError(BundleRevisionUnavailableError, ValueError):
    """Nobody here can tell which revision is active."""

    suggestion = "Upgrade goondan-workers here to the version of the workers."


Edit = Callable[[RevisionState | None], RevisionState | None]


class ActiveRevision:
    """The record of one workspace.

    Every method takes one trip, and raises RedisError if it fails, UnreadableRevisionsError if what stands
    there is of a newer version.
    """

    def __init__(self, redis: Redis, keys: Keys, workspace: str) -> None:
        self._redis = redis
        self._key = keys.revision(workspace)

    def state(self) -> RevisionState | None:
        """Return the record; ``None`` if no worker follows revisions here."""
        return _state(cast("bytes | None", self._redis.get(self._key)))

    def begin(self, ref: str) -> RevisionState:
        """Make the first revision of a workspace active; return what is active, whoever was first."""
        stored = self._edited(lambda state: state or RevisionState(active=ref))
        if stored is None:
            raise RuntimeError("an edit that begins a record leaves one")
        return stored

    def propose(self, change: RevisionChange) -> None:
        """Ask for another revision; a later proposal takes the place of an earlier one."""

        def proposed(state: RevisionState | None) -> RevisionState | None:
            if state is None or state.active == change.new_ref:
                return state and state.model_copy(update={"proposed": None})
            return state.model_copy(
                update={"proposed": change.model_copy(update={"previous_ref": state.active})}
            )

        self._edited(proposed)

    def activate(self, ref: str) -> RevisionChange | None:
        """Make the proposed revision active; return the change if this was the one who did it."""
        done: list[RevisionChange] = []

        def activated(state: RevisionState | None) -> RevisionState | None:
            done.clear()
            if state is None or state.proposed is None or state.proposed.new_ref != ref:
                return state
            done.append(state.proposed)
            failed = state.failed if state.failed and state.failed.ref != ref else None
            now = {"active": ref, "change": state.proposed, "proposed": None, "failed": failed}
            return state.model_copy(update={**now, "abandoned": _abandoned(state, ref)})

        self._edited(activated)
        return done[0] if done else None

    def withdraw(self, failure: RevisionFailure, *, is_proposed: bool = False) -> RevisionFailure | None:
        """Take back a revision that cannot be loaded; if it is active, the one before it is again.

        One that ``is_proposed`` is left alone if somebody else has made it active meanwhile.
        Return what stands in the record of it then, if this was the one who did it.
        """

        def withdrawn(state: RevisionState | None) -> RevisionState | None:
            if state is None:
                return None
            change = next(
                (it for it in (state.proposed, state.change) if it and it.new_ref == failure.ref), None
            )
            noted = _with_loading(state, failure.ref, None).model_copy(
                update={"failed": failure.model_copy(update={"change": change})}
            )
            if state.proposed is not None and state.proposed.new_ref == failure.ref:
                return noted.model_copy(update={"proposed": None})
            previous = state.change.previous_ref if state.change else None
            if is_proposed:
                decided = {state.active, state.failed.ref if state.failed else None}
                return state if failure.ref in decided else noted
            if state.active == failure.ref and previous is not None:
                return noted.model_copy(update={"active": previous, "change": None})
            return noted

        after = self._edited(withdrawn)
        stands = after.failed if after else None
        is_ours = stands and (stands.ref, stands.worker) == (failure.ref, failure.worker)
        return stands if is_ours else None

    def begin_loading(
        self, loading: RevisionLoading, *, is_lost: Callable[[RevisionLoading], bool]
    ) -> LoadingTurn:
        """Note that a worker begins to load a revision; say whose turn that is.

        It is nobody's, once, after so many have begun that were lost with it: ``is_lost`` says so of a
        loading. The note stays then, so that nobody else begins before the revision is withdrawn.
        """
        turn: list[LoadingTurn] = []

        def begun(state: RevisionState | None) -> RevisionState | None:
            before = state.loading_of(loading.ref) if state else None
            turn[:] = ["ours"]
            if state is None:
                return None
            if before is not None and not is_lost(before):
                turn[:] = ["ours" if before.worker_id == loading.worker_id else "theirs"]
                return state
            times = 1 if before is None else before.times + 1
            turn[:] = ["ours" if times <= MOST_LOST_LOADINGS else "nobody's"]
            return _with_loading(state, loading.ref, loading.model_copy(update={"times": times}))

        self._edited(begun)
        return turn[0]

    def end_loading(self, ref: str, worker_id: str) -> None:
        """Take back the note of :meth:`begin_loading`, if it is this worker's."""

        def ended(state: RevisionState | None) -> RevisionState | None:
            noted = state.loading_of(ref) if state else None
            if state is None or noted is None or noted.worker_id != worker_id:
                return state
            return _with_loading(state, ref, None)

        self._edited(ended)

    def end(self, seen: RevisionState) -> None:
        """Remove the record, if it is still as it was seen: the workers that run now follow no revisions."""
        self._edited(lambda state: None if state == seen else state)

    def keep(self) -> None:
        """Let the record live on, because a worker does."""
        self._redis.expire(self._key, TTL_SECONDS)

    def _edited(self, edit: Edit) -> RevisionState | None:
        """Change the record, again if somebody else has changed it meanwhile; return how it is then."""
        after: list[RevisionState | None] = []

        def transaction(pipe: "Pipeline") -> None:
            before = _state(cast("bytes | None", pipe.get(self._key)))
            state = edit(before)
            after[:] = [state]
            pipe.multi()
            if state is None:
                pipe.delete(self._key)
            elif state != before:
                pipe.set(self._key, serializer.encode(state.to_wire()), ex=TTL_SECONDS)

        self._redis.transaction(transaction, self._key)
        return after[0]


def _state(stored: bytes | None) -> RevisionState | None:
    if stored is None:
        return None
    try:
        return RevisionState.from_wire(serializer.decode(stored))
    except ValueError as error:
        raise UnreadableRevisionsError(
            "The record of the bundle's revisions cannot be read here: it is damaged, or of a newer version."
        ) from error


def _abandoned(state: RevisionState, ref: str) -> tuple[str, ...]:
    """Return what is abandoned once ``ref`` is active; a digest of files stands for what a person edits.

    Nothing is, once that is active: the folder leads again, and to undo an edit brings its commit back.
    """
    if ref.startswith(UNCOMMITTED):
        return ()
    behind = [*state.abandoned, *([] if state.active.startswith(UNCOMMITTED) else [state.active])]
    return tuple(one for one in behind if one != ref)[-MOST_ABANDONED:]


def _with_loading(state: RevisionState, ref: str, loading: RevisionLoading | None) -> RevisionState:
    others = [one for one in state.loading if one.ref != ref]
    loadings = [*others, loading] if loading else others
    return state.model_copy(update={"loading": tuple(loadings[-MOST_LOADINGS:])})
