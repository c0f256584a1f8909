"""A worker takes the next revision of its bundle at a Safe Point, without a restart (000 §12.4).

Each commit proposes a revision (:mod:`goondan_tasks.revisions.active`). One worker loads it whole while the
others wait, and makes it active, or withdraws it; then the others load what is active. One thread does
this. It looks when a Step or a Turn begins, and once a second besides, so that mostly the revision is
loaded by then. A worker that cannot load what others run keeps the revision that it has, and leaves the
calls of the active one to them.

Code that ends a process when it is imported is found in a child process (``Revision.try_out``). Code that
ends it later, an extension's ``register`` for instance, ends one worker at a time, because the others wait.
The crash-loop guard counts the loads that never ended: after MOST_LOST_LOADS the revision is withdrawn.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from time import monotonic, sleep
from typing import NoReturn

import structlog
from redis.exceptions import RedisError

from broker_config.process_identity import this_process
from goondan_tasks.agent_registry import WorkerRecord
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import ToolCall, iso_time, wall_clock
from goondan_tasks.revisions.active import (
    CHANGED,
    LOAD_LEASE_SECONDS,
    MOST_LOST_LOADS,
    ActiveRevision,
    RevisionChange,
    RevisionFailure,
    RevisionState,
    failure_event,
    revision_event,
)
from goondan_tasks.revisions.bootstrap import FollowedBundle
from goondan_tasks.revisions.checkouts import clean_checkouts
from workers.agents.handoffs import Handoffs
from workers.concurrency.threads import on_new_thread, without_fault
from workers.revisions.revision import Revision
from workers.revisions.revisions import Revisions

logger = structlog.get_logger(__name__)

#: how often a worker looks whether the active revision has changed, unless it is told; and one of goondan dev
LOOK_SECONDS, DEV_LOOK_SECONDS = 1.0, 0.1
#: how long a Step or a Turn waits for a revision that is being loaded, before it begins with the old one
PATIENCE_SECONDS = 10.0
#: how long a worker may take to load the active revision before it leaves calls to others
BEHIND_SECONDS = 2.0
#: how long a worker that has activated a revision may take to announce that it runs it
TELLING_SECONDS = 3.0
#: how often a waiting worker checks whether another one has decided on a proposal
HEARING_SECONDS = 0.1
#: how often, in one look, another worker may be faster
ATTEMPTS = 5
#: how often the record's life is renewed and old checkouts are removed
MAINTENANCE_SECONDS = 3_600.0
#: how long an unused checkout stays
CHECKOUT_SECONDS = 7 * 86_400.0


class LostLoadsError(ConfigError):
    """Loading the revision has ended the workers that tried."""

    suggestion = "Keep what ends a process, or takes all its memory, out of what is run at import."


class LoadedElsewhereError(Exception):
    """Another worker loads the revision."""


@contextlib.contextmanager
def guarded_load(record: ActiveRevision, ref: str, *, is_alone: bool = False) -> Iterator[None]:
    """Load a revision in the block; with ``is_alone``, only if no other worker does. Redis may be away.

    Raises:
        LostLoadsError: too many workers have ended with it; the block is not entered.
        LoadedElsewhereError: another worker loads it; the block is not entered.
    """
    count: int | None = 0
    with _unless_redis_is_away():
        count = record.claim_load(ref, this_process().id)
    if count is None:
        if is_alone:
            raise LoadedElsewhereError(ref)
        yield
        return
    if count > MOST_LOST_LOADS:
        raise LostLoadsError(f"{MOST_LOST_LOADS} workers have ended while they loaded {ref}.")
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(LOAD_LEASE_SECONDS / 3):
            with _unless_redis_is_away():
                record.renew_load(ref)

    on_new_thread(renew)
    try:
        yield
    finally:
        is_over.set()
        with _unless_redis_is_away():
            record.end_load(ref)


@contextlib.contextmanager
def _unless_redis_is_away() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        logger.warning("revision.load_not_claimed", reason=str(error))


class Standby:
    """Leaves the calls of a worker that lacks the active revision to workers that have it.

    Otherwise it would fail each call in a millisecond, before those could take it. It takes calls again as
    soon as it has the revision, or no other worker has.
    """

    def __init__(
        self,
        revisions: Revisions,
        state: Callable[[], RevisionState | None],
        workers: Callable[[], Iterable[WorkerRecord]],
    ) -> None:
        self._revisions = revisions
        self._state = state
        self._workers = workers
        #: the active revision, if it is not loaded here, and since when calls are left because of it
        self._lacks: tuple[str, float] | None = None
        #: the agents whose calls are left to others
        self.agents: frozenset[str] = frozenset()
        #: whether the worker stops, and takes no calls again
        self.is_over = False

    def lack(self, ref: str, *, is_loading: bool = False) -> None:
        """Note that the active revision is not loaded here, or not yet."""
        if not is_loading:
            self._lacks = ref, monotonic()
        elif self._lacks is None or self._lacks[0] != ref:
            self._lacks = ref, monotonic() + BEHIND_SECONDS

    def have(self) -> None:
        """Note that the active revision is loaded here."""
        self._lacks = None

    def others_run(self, ref: str, agents: Iterable[str]) -> frozenset[str]:
        """Return those of the agents that another living worker serves with a revision; raises RedisError."""
        others = [one for one in self._workers() if one.bundle_ref == ref and one.id != this_process().id]
        return frozenset(agents).intersection(agent for one in others for agent in one.agents)

    def leaves(self, call: ToolCall, error: GoondanError) -> bool:
        """Return whether a call is left to others: they run its revision, which cannot be loaded here."""
        if not isinstance(error, BundleRevisionUnavailableError | ConfigError):
            return False
        try:
            ref, state = self._revisions.fixed(call).bundle_ref, self._state()
            if ref is None or state is None or state.active != ref or self._revisions.active.ref == ref:
                return False
            if not self.others_run(ref, [call.agent_name]):
                return False
        except (RedisError, ValueError) as refusal:
            logger.warning("call.not_left_to_others", agent=call.agent_name, reason=str(refusal))
            return False
        self.lack(ref)
        return True

    def look(self) -> None:
        """Decide for which agents this process stands by; raises RedisError."""
        if self.is_over:
            return
        lacks, self.agents = self._lacks, frozenset()
        if lacks is not None and monotonic() >= lacks[1]:
            self.agents = self.others_run(lacks[0], self._revisions.served)

    def end(self) -> None:
        """Stop deciding: the worker stops."""
        self.is_over = True


class RevisionNews:
    """Tells this worker's extensions of changes and, if the policy says so, the agent that committed."""

    def __init__(self, revisions: Revisions, handoffs: Handoffs, swarm: str | None) -> None:
        self._revisions = revisions
        self._handoffs = handoffs
        self._swarm = swarm

    def tell(self, change: RevisionChange) -> None:
        """Tell that another revision is active."""
        revision, served = self._revisions.active, self._revisions.served

        def emit() -> None:
            for agent in served:
                revision.extensions.services.events.emit(agent, CHANGED, change.to_wire())

        on_new_thread(emit)
        self._send(revision, revision_event(change))

    def tell_failure(self, failure: RevisionFailure) -> None:
        """Tell the agent that committed a revision that it cannot be loaded."""
        self._send(self._revisions.active, failure_event(failure))

    def _send(self, revision: Revision, event: ToolCall | None) -> None:
        policy = revision.bundle.swarm(self._swarm).spec.policy.changesets
        if event is None or not policy.emit_revision_changed_event:
            return
        if event.agent_name not in revision.bundle.agents:
            return
        try:
            self._handoffs.get_ready()
            self._handoffs.submit_event(event)
        except GoondanError as error:
            logger.warning("revision.not_told", agent=event.agent_name, reason=error.message)


class RevisionSync:
    """Keeps the active revision of one worker process that of its workspace."""

    def __init__(
        self,
        bundle: FollowedBundle,
        record: ActiveRevision,
        revisions: Revisions,
        *,
        standby: Standby,
        news: RevisionNews,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._bundle = bundle
        self._record = record
        self._revisions = revisions
        self._standby = standby
        self._news = news
        self._clock = clock
        self._has_begun = False
        #: the revision that this process starts with, if it is to replace the active one
        self._untried: str | None = None
        #: the proposal tried last
        self._tried: RevisionChange | None = None
        #: the active revision that cannot be loaded here, and since when
        self._lacked = ("", 0.0)
        #: the revisions that the last look, or a Step since then, has asked for in vain
        self._missed: frozenset[str] = frozenset()
        self._kept_at = -MAINTENANCE_SECONDS
        self._poller = _FallbackPoller(look_seconds, self.look, revisions.close_unused, self._keep_up)

    def start(self) -> None:
        """Agree with the other workers on the revision to start with, and follow it on a thread.

        Without Redis that is the bundle's folder, and agreement comes later.
        """
        try:
            self._begin()
        except (RedisError, ValueError) as error:
            _log_unread(error)
        self._revisions.reach_safe_point = self.reach_safe_point
        self._poller.start()

    def serve(self, *agents: str) -> None:
        """Prepare for more agents; a revision that cannot be prepared gives way to the one before it.

        Raises:
            ConfigError: neither can be, or other workers serve these agents with it.
        """
        if set(agents) <= set(self._revisions.served):
            return
        try:
            self._serve(agents)
        except ConfigError as error:
            if not self._gives_way(error, agents):
                raise
            self._serve(agents)

    def _serve(self, agents: Collection[str]) -> None:
        with guarded_load(self._record, self._own_ref):
            if self._own_ref == self._untried:
                self._revisions.active.try_out(agents)
            self._revisions.serve(*agents)

    def reach_safe_point(self) -> None:
        """Take what is proposed, or active elsewhere, before a Step or a Turn begins; this blocks.

        A revision that takes longer than PATIENCE_SECONDS is awaited once.
        """
        try:
            state = self._record.state()
        except (RedisError, ValueError) as error:
            _log_unread(error)
            return
        asked = frozenset() if state is None else _asked_for(state) - {self._own_ref} - self._missed
        if (state is None or asked) and not self._poller.looks_within(PATIENCE_SECONDS):
            logger.warning("revision.not_awaited", runs=self._own_ref, seconds=PATIENCE_SECONDS)
            self._missed |= asked

    def look(self) -> None:
        """Do what the record asks for; a worker that serves no agent yet can judge no revision.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
            ValueError: the record cannot be read.
        """
        if not self._revisions.served:
            return
        if not self._has_begun:
            self._begin()
        missed: set[str] = set()
        for _ in range(ATTEMPTS):
            state = self._record.state() or self._record.begin(self._own_ref)
            if not (self._takes(state.proposed, missed) or self._follows(state, missed)):
                break
        self._missed = frozenset(missed)

    @property
    def _own_ref(self) -> str:
        return self._revisions.active.ref or ""

    def _begin(self) -> None:
        ours = self._own_ref
        state = self._record.begin(ours)
        left = {*state.abandoned, state.failed.ref if state.failed else None}
        if state.active != ours:
            if ours not in left and self._supersedes(ours, state.active):
                self._untried = ours
                self._record.propose(RevisionChange(new_ref=ours, timestamp=_now()))
            else:
                self._activate_if_possible(state.active)
        self._has_begun = True

    def _activate_if_possible(self, active: str) -> None:
        try:
            self._revisions.activate(active)
        except GoondanError as error:
            logger.warning("revision.not_active_here", ref=active, runs=self._own_ref, reason=error.message)

    def _supersedes(self, ours: str, active: str) -> bool:
        try:
            return self._bundle.supersedes(ours, active)
        except GoondanError as error:
            logger.warning("revision.not_compared", ref=ours, active=active, reason=error.message)
            return False

    def _takes(self, proposed: RevisionChange | None, missed: set[str]) -> bool:
        """Load a proposal; return whether the record is another one now."""
        if proposed is None:
            return False
        ref = proposed.new_ref
        if proposed != self._tried:
            self._tried = proposed
            self._revisions.failures.forget(ref)
        try:
            with self._revisions.failures.noted(ref), guarded_load(self._record, ref, is_alone=True):
                # this worker may be the only one that decides, for the agents of others too
                revision = self._revisions.of(ref)
                revision.try_out(revision.bundle.agents)
                revision.load_tools(self._revisions.served)
                self._record.activate(ref)
        except LoadedElsewhereError:
            self._await_decision(proposed)
        except BundleRevisionUnavailableError as error:
            self._miss(ref, error, missed)
            return False
        except GoondanError as error:
            self._withdraw(ref, error, is_proposed=True)
        return True

    def _await_decision(self, proposed: RevisionChange) -> None:
        """Wait until the worker that loads a proposal has decided on it, or has ended."""
        while self._record.is_loading(proposed.new_ref):
            state = self._record.state()
            if state is None or state.proposed != proposed:
                return
            sleep(HEARING_SECONDS)

    def _follows(self, state: RevisionState, missed: set[str]) -> bool:
        """Activate here what is active; return whether the record may be another one now."""
        before, ref = self._own_ref, state.active
        if ref == before:
            self._standby.have()
            return False
        self._standby.lack(ref, is_loading=True)
        try:
            with self._revisions.failures.noted(ref), guarded_load(self._record, ref):
                revision = self._revisions.of(ref)
                # The tools, too: at their first calls it is too late to keep the old revision. The first
                # revision may have a tool that does not load, as where no revisions are followed.
                if state.change is not None:
                    revision.load_tools(self._revisions.served)
            self._revisions.activate(ref)
        except GoondanError as error:
            return self._does_without(state, error, missed)
        self._standby.have()
        logger.info("revision.changed", ref=ref, previous=before)
        self._news.tell(state.change or RevisionChange(previous_ref=before, new_ref=ref, timestamp=_now()))
        return True

    def _does_without(self, state: RevisionState, error: GoondanError, missed: set[str]) -> bool:
        """Keep the revision that runs here, and withdraw the active one if no other worker can run it.

        Return whether the record is another one now.
        """
        ref = state.active
        if self._lacked[0] != ref:
            self._lacked = ref, self._clock()
        is_announced = self._clock() - self._lacked[1] >= TELLING_SECONDS
        is_here = not isinstance(error, BundleRevisionUnavailableError)
        if is_here and is_announced and not self._is_covered(ref, self._revisions.served):
            has_one_before = state.change is not None and state.change.previous_ref is not None
            if has_one_before or state.failed is None or state.failed.ref != ref:
                self._withdraw(ref, error)
            return has_one_before
        self._miss(ref, error, missed)
        self._standby.lack(ref)
        return False

    def _is_covered(self, ref: str, agents: Collection[str]) -> bool:
        return self._standby.others_run(ref, agents) == frozenset(agents)

    def _miss(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without a revision; a later look tries again."""
        missed.add(ref)
        if ref not in self._missed:
            logger.warning("revision.unavailable", ref=ref, runs=self._own_ref, reason=error.message)

    def _withdraw(self, ref: str, error: GoondanError, *, is_proposed: bool = False) -> None:
        logger.error("revision.withdrawn", ref=ref, code=error.code, reason=error.message)
        worker, at = this_process().name, _now()
        failure = self._record.withdraw(
            RevisionFailure(ref=ref, code=error.code, reason=error.message, worker=worker, timestamp=at),
            is_proposed=is_proposed,
        )
        if failure is not None:
            self._news.tell_failure(failure)

    def _gives_way(self, error: ConfigError, agents: Collection[str]) -> bool:
        """Withdraw the revision that this process started with; return whether another one is active now.

        It is not withdrawn if other workers serve all of the agents with it: then this one does not serve.
        """
        failed = self._own_ref
        try:
            if self._is_covered(failed, agents):
                return False
            self._withdraw(failed, error)
            state = self._record.state()
            if state is None or state.active == failed:
                return False
            self._revisions.activate(state.active)
        except (RedisError, ValueError, GoondanError) as refusal:
            logger.warning("revision.does_not_give_way", ref=failed, reason=str(refusal))
            return False
        return True

    def _keep_up(self) -> None:
        if monotonic() - self._kept_at > MAINTENANCE_SECONDS:
            self._kept_at = monotonic()
            self._record.keep()
            on_new_thread(partial(_attempt, self._clean_up))

    def _clean_up(self) -> None:
        clean_checkouts(self._bundle.checkouts.cache, CHECKOUT_SECONDS)


def _asked_for(state: RevisionState) -> frozenset[str]:
    return frozenset({state.active} | ({state.proposed.new_ref} if state.proposed else set()))


def _now() -> str:
    return iso_time(wall_clock())


def forget_revisions(
    record: ActiveRevision, workers: Callable[[], Iterable[WorkerRecord]], workspace: str
) -> None:
    """Remove the record that a workspace has from a time when its workers followed revisions.

    Calls that name its active revision could not be run now. A worker that does not follow revisions calls
    this when it starts; as long as one of the workspace that does is known, the record stays.
    """
    try:
        state = record.state()
        if state is not None and not any(one.bundle_ref and one.workspace == workspace for one in workers()):
            record.end(state)
    except (RedisError, ValueError) as error:
        logger.warning("revision.record_not_read", reason=str(error))


def not_followed(ref: str) -> NoReturn:
    """Refuse to load a revision: what :class:`Revisions` calls where none is followed.

    Raises:
        BundleRevisionUnavailableError: always.
    """
    raise BundleRevisionUnavailableError(
        f"The revision {ref} cannot be had: this worker does not follow revisions.",
        suggestion="Let the Swarm's policy.changesets be enabled, or set GOONDAN_BUNDLE_REMOTE, "
        "for all workers.",
    )


class _FallbackPoller:
    """Reads the record of the active revision, then runs the less urgent ``after``."""

    def __init__(self, seconds: float, look: Callable[[], None], *after: Callable[[], None]) -> None:
        self._seconds = seconds
        self._look = look
        self._after = after
        self._rounds = threading.Condition()
        self._asked = 0
        self._answered = 0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="goondan-following", daemon=True).start()

    def looks_within(self, seconds: float) -> bool:
        """Request another round and wait for it; return whether it ended in time."""
        with self._rounds:
            self._asked += 1
            round_ = self._asked
            self._rounds.notify_all()
            return self._rounds.wait_for(lambda: self._answered >= round_, seconds)

    def _run(self) -> None:
        while True:
            with self._rounds:
                self._rounds.wait_for(lambda: self._asked > self._answered, self._seconds)
                round_ = self._asked
            without_fault(partial(_attempt, self._look))
            with self._rounds:
                self._answered = round_
                self._rounds.notify_all()
            for what in self._after:
                without_fault(partial(_attempt, what))


def _attempt(what: Callable[[], None]) -> None:
    """Read the record with ``what``; log a record that cannot be read."""
    try:
        what()
    except (RedisError, ValueError) as error:
        _log_unread(error)


def _log_unread(error: Exception) -> None:
    """Log that the record could not be read."""
    logger.warning("revision.record_not_read", reason=str(error))
