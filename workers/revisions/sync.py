"""Switches a worker to the next revision of its bundle at a Safe Point, without a restart (000 §12.4).

Each commit proposes a revision (:mod:`goondan_tasks.revisions.active`). One worker loads all of it while the
others wait, then activates or withdraws it; the others load whatever is active. One thread of each worker
does this. It polls once a second, so that a revision is usually loaded before it is needed, and at once when
a Step or a Turn begins. A worker that cannot load the active revision keeps the one it has and leaves calls
of the active one to workers that run it.

Code that ends its process at import is caught in a child process (``Revision.try_out``). Code that ends it
later, such as an extension's ``register``, takes down one worker at a time, because the others wait. The
crash-loop guard counts loads that never ended: after MOST_LOST_LOADS the revision is withdrawn.
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
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.contract.messages import ToolCall, iso_time, wall_clock
from goondan_tasks.fleet.agent_registry import WorkerRecord
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

#: poll interval of the record, and under goondan dev
LOOK_SECONDS, DEV_LOOK_SECONDS = 1.0, 0.1
#: how long a Step or a Turn waits for a revision to load before it begins with the old one
PATIENCE_SECONDS = 10.0
#: how long a worker may take to load the active revision before it leaves calls to others
BEHIND_SECONDS = 2.0
#: how long a worker that has activated a revision may take to announce that it runs it
ANNOUNCE_SECONDS = 3.0
#: poll interval while another worker decides on a proposal
DECISION_SECONDS = 0.1
#: how often the record may change while one look handles it
ATTEMPTS = 5
#: how often the record's TTL is renewed and old checkouts are removed
MAINTENANCE_SECONDS = 3_600.0
#: lifetime of an unused checkout
CHECKOUT_SECONDS = 7 * 86_400.0


class LostLoadsError(ConfigError):
    """The workers that tried to load the revision died."""

    suggestion = "Do nothing at import that ends the process or takes all its memory."


class LoadedElsewhereError(Exception):
    """Another worker is loading the revision."""


@contextlib.contextmanager
def guarded_load(record: ActiveRevision, ref: str, *, is_alone: bool = False) -> Iterator[None]:
    """Count the block as a load of a revision; with ``is_alone``, refuse while another worker loads it.

    Without Redis the block runs uncounted.

    Raises:
        LostLoadsError: too many workers died while loading it; the block is not entered.
        LoadedElsewhereError: another worker is loading it; the block is not entered.
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
        raise LostLoadsError(f"{MOST_LOST_LOADS} workers died while they loaded {ref}.")
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

    Otherwise this worker would fail every call within a millisecond, before the others could take it. It
    takes calls again once it has the revision, or once no other worker has it.
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
        #: the active revision if it is not loaded here, and the time from which calls are left to others
        self._lacks: tuple[str, float] | None = None
        #: the agents whose calls are left to others
        self.agents: frozenset[str] = frozenset()
        #: whether the worker is stopping; :attr:`agents` no longer changes then
        self.is_over = False

    def lack(self, ref: str, *, is_loading: bool = False) -> None:
        """Note that the active revision is not loaded here, or is still loading."""
        if not is_loading:
            self._lacks = ref, monotonic()
        elif self._lacks is None or self._lacks[0] != ref:
            self._lacks = ref, monotonic() + BEHIND_SECONDS

    def have(self) -> None:
        """Note that the active revision is loaded here."""
        self._lacks = None

    def others_run(self, ref: str, agents: Iterable[str]) -> frozenset[str]:
        """Return the agents that another live worker serves with a revision; raises RedisError."""
        others = [one for one in self._workers() if one.bundle_ref == ref and one.id != this_process().id]
        return frozenset(agents).intersection(agent for one in others for agent in one.agents)

    def leaves(self, call: ToolCall, error: GoondanError) -> bool:
        """Return whether other workers should run a call, because its revision cannot be loaded here."""
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
        """Update :attr:`agents`; raises RedisError."""
        if self.is_over:
            return
        lacks, self.agents = self._lacks, frozenset()
        if lacks is not None and monotonic() >= lacks[1]:
            self.agents = self.others_run(lacks[0], self._revisions.served)

    def end(self) -> None:
        """Stop updating, because the worker is stopping."""
        self.is_over = True


class RevisionNews:
    """Announces changes to this worker's extensions and, if the policy says so, to the committing agent."""

    def __init__(self, revisions: Revisions, handoffs: Handoffs, swarm: str | None) -> None:
        self._revisions = revisions
        self._handoffs = handoffs
        self._swarm = swarm

    def tell(self, change: RevisionChange) -> None:
        revision, served = self._revisions.active, self._revisions.served

        def emit() -> None:
            for agent in served:
                revision.extensions.services.events.emit(agent, CHANGED, change.to_wire())

        on_new_thread(emit)
        self._send(revision, revision_event(change))

    def tell_failure(self, failure: RevisionFailure) -> None:
        """Tell the agent that committed a revision why it cannot be loaded."""
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
    """Keeps a worker process on the active revision of its workspace."""

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
        #: this process's first revision, if it is proposed to replace the active one
        self._untried: str | None = None
        #: the proposal tried last
        self._tried: RevisionChange | None = None
        #: the active revision that cannot be loaded here, and since when
        self._lacking = ("", 0.0)
        #: the revisions that the last look failed to get, or that a Step has given up waiting for since
        self._missed: frozenset[str] = frozenset()
        self._maintained_at = -MAINTENANCE_SECONDS
        self._poller = _Poller(look_seconds, self.look, revisions.close_unused, self._maintain)

    def start(self) -> None:
        """Agree with the other workers on the first revision, then follow changes on a thread.

        Without Redis the first revision is the bundle's folder, and agreement comes later.
        """
        try:
            self._begin()
        except (RedisError, ValueError) as error:
            _log_unread(error)
        self._revisions.reach_safe_point = self.reach_safe_point
        self._poller.start()

    def serve(self, *agents: str) -> None:
        """Prepare for more agents; fall back to the previous revision if this one cannot be prepared.

        Raises:
            ConfigError: neither can be prepared, or other workers serve these agents with this one.
        """
        if set(agents) <= set(self._revisions.served):
            return
        try:
            self._serve(agents)
        except ConfigError as error:
            if not self._falls_back(error, agents):
                raise
            self._serve(agents)

    def _serve(self, agents: Collection[str]) -> None:
        with guarded_load(self._record, self._own_ref):
            if self._own_ref == self._untried:
                self._revisions.active.try_out(agents)
            self._revisions.serve(*agents)

    def reach_safe_point(self) -> None:
        """Switch to a revision that is proposed or active before a Step or a Turn begins; this blocks.

        A revision that takes longer than PATIENCE_SECONDS is waited for only once.
        """
        try:
            state = self._record.state()
        except (RedisError, ValueError) as error:
            _log_unread(error)
            return
        wanted: set[str] = set()
        if state is not None:
            wanted = {state.active} | ({state.proposed.new_ref} if state.proposed else set())
            wanted -= {self._own_ref, *self._missed}
        if (state is None or wanted) and not self._poller.looks_within(PATIENCE_SECONDS):
            logger.warning("revision.not_awaited", runs=self._own_ref, seconds=PATIENCE_SECONDS)
            self._missed |= wanted

    def look(self) -> None:
        """Bring this process in line with the record, unless it serves no agent to test a revision with.

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
            if not (self._try_proposal(state.proposed, missed) or self._follow_active(state, missed)):
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

    def _try_proposal(self, proposed: RevisionChange | None, missed: set[str]) -> bool:
        """Load a proposal and activate or withdraw it; return whether the record may have changed."""
        if proposed is None:
            return False
        ref = proposed.new_ref
        if proposed != self._tried:
            self._tried = proposed
            self._revisions.failures.forget(ref)
        try:
            with self._revisions.failures.noted(ref), guarded_load(self._record, ref, is_alone=True):
                # no other worker may check it, so import the entries of all agents
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
        """Wait until the worker that loads a proposal has decided on it or died."""
        while self._record.is_loading(proposed.new_ref):
            state = self._record.state()
            if state is None or state.proposed != proposed:
                return
            sleep(DECISION_SECONDS)

    def _follow_active(self, state: RevisionState, missed: set[str]) -> bool:
        """Load the active revision and switch to it; return whether the record may have changed."""
        before, ref = self._own_ref, state.active
        if ref == before:
            self._standby.have()
            return False
        self._standby.lack(ref, is_loading=True)
        try:
            with self._revisions.failures.noted(ref), guarded_load(self._record, ref):
                revision = self._revisions.of(ref)
                # Load the tools, too: at their first calls it is too late to keep the old revision. As where
                # no revisions are followed, the first revision may have a tool that does not load.
                if state.change is not None:
                    revision.load_tools(self._revisions.served)
            self._revisions.activate(ref)
        except GoondanError as error:
            return self._keep_old(state, error, missed)
        self._standby.have()
        logger.info("revision.changed", ref=ref, previous=before)
        self._news.tell(state.change or RevisionChange(previous_ref=before, new_ref=ref, timestamp=_now()))
        return True

    def _keep_old(self, state: RevisionState, error: GoondanError, missed: set[str]) -> bool:
        """Stay on the current revision, and withdraw the active one if no other worker can run it.

        Return whether the record may have changed.
        """
        ref = state.active
        if self._lacking[0] != ref:
            self._lacking = ref, self._clock()
        others_have_announced = self._clock() - self._lacking[1] >= ANNOUNCE_SECONDS
        is_faulty = not isinstance(error, BundleRevisionUnavailableError)
        if is_faulty and others_have_announced and not self._is_covered(ref, self._revisions.served):
            has_previous = state.change is not None and state.change.previous_ref is not None
            if has_previous or state.failed is None or state.failed.ref != ref:
                self._withdraw(ref, error)
            return has_previous
        self._miss(ref, error, missed)
        self._standby.lack(ref)
        return False

    def _is_covered(self, ref: str, agents: Collection[str]) -> bool:
        return self._standby.others_run(ref, agents) == frozenset(agents)

    def _miss(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Note that a revision is unavailable for now; a later look tries again."""
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

    def _falls_back(self, error: ConfigError, agents: Collection[str]) -> bool:
        """Withdraw this process's first revision and switch to the one that is active then, if there is one.

        Nothing happens if other workers serve all of the agents with it.
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

    def _maintain(self) -> None:
        if monotonic() - self._maintained_at > MAINTENANCE_SECONDS:
            self._maintained_at = monotonic()
            self._record.keep()
            on_new_thread(partial(clean_checkouts, self._bundle.checkouts.cache, CHECKOUT_SECONDS))


def _now() -> str:
    return iso_time(wall_clock())


def forget_revisions(
    record: ActiveRevision, workers: Callable[[], Iterable[WorkerRecord]], workspace: str
) -> None:
    """Remove a workspace's record of revisions, unless one of its known workers still follows them.

    A worker that does not follow revisions calls this at its start: it could not run calls that name the
    record's active revision.
    """
    try:
        state = record.state()
        if state is not None and not any(one.bundle_ref and one.workspace == workspace for one in workers()):
            record.end(state)
    except (RedisError, ValueError) as error:
        logger.warning("revision.record_not_read", reason=str(error))


def not_followed(ref: str) -> NoReturn:
    """Refuse to load a revision: the ``fetch`` of :class:`Revisions` where none is followed.

    Raises:
        BundleRevisionUnavailableError: always.
    """
    raise BundleRevisionUnavailableError(
        f"The revision {ref} cannot be loaded: this worker does not follow revisions.",
        suggestion="Enable the Swarm's policy.changesets, or set GOONDAN_BUNDLE_REMOTE, for all workers.",
    )


class _Poller:
    """Runs ``look`` every so many seconds or on request, and the less urgent ``after`` behind it."""

    def __init__(self, seconds: float, look: Callable[[], None], *after: Callable[[], None]) -> None:
        self._seconds = seconds
        self._look = look
        self._after = after
        self._rounds = threading.Condition()
        self._requested = 0
        self._ended = 0

    def start(self) -> None:
        threading.Thread(target=self._run, name="goondan-following", daemon=True).start()

    def looks_within(self, seconds: float) -> bool:
        """Request another round and wait for it; return whether it ended in time."""
        with self._rounds:
            self._requested += 1
            round_ = self._requested
            self._rounds.notify_all()
            return self._rounds.wait_for(lambda: self._ended >= round_, seconds)

    def _run(self) -> None:
        while True:
            with self._rounds:
                self._rounds.wait_for(lambda: self._requested > self._ended, self._seconds)
                round_ = self._requested
            without_fault(partial(_attempt, self._look))
            with self._rounds:
                self._ended = round_
                self._rounds.notify_all()
            for task in self._after:
                without_fault(partial(_attempt, task))


def _attempt(task: Callable[[], None]) -> None:
    """Run a task; if it cannot read the record, log that."""
    try:
        task()
    except (RedisError, ValueError) as error:
        _log_unread(error)


def _log_unread(error: Exception) -> None:
    logger.warning("revision.record_not_read", reason=str(error))
