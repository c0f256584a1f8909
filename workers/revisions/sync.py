"""A worker takes the next revision of its bundle at a Safe Point, without a restart (000 §12.4).

Each commit proposes a revision (:mod:`goondan_tasks.revisions.active`). One worker loads it whole while the
others wait, and makes it active, or withdraws it; then the others load what is active. One thread does
this. It looks when a Step or a Turn begins, and once a second besides, so that mostly the revision is
loaded by then.

Code that ends a process when it is imported is found in a child process (``Revision.try_out``). Code that
ends it later, an extension's ``register`` for instance, ends one worker at a time, because the others wait.
The crash-loop guard notes each load in Redis: a revision that has ended MOST_LOST_LOADINGS workers is not
loaded again.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic, sleep

import structlog
from redis.exceptions import RedisError

from goondan_tasks.agent_registry import WorkerRecord
from goondan_tasks.bundle import Bundle
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import ToolCall, iso_time, wall_clock
from goondan_tasks.revisions.active import (
    CHANGED,
    MOST_LOST_LOADINGS,
    ActiveRevision,
    LoadingTurn,
    RevisionChange,
    RevisionFailure,
    RevisionLoading,
    RevisionState,
    failure_event,
    revision_event,
)
from goondan_tasks.revisions.bootstrap import FollowedBundle, UnfollowableError
from goondan_tasks.revisions.checkouts import Checkout, Checkouts, clean_checkouts
from workers.agents.handoffs import Handoffs
from workers.concurrency.lookout import Lookout, attempt, log_unread
from workers.concurrency.threads import on_new_thread
from workers.process_identity import ProcessIdentity, this_process
from workers.revisions.revision import Revision
from workers.revisions.revisions import Fetch, LoadFailures, Revisions
from workers.revisions.standby import StandBy

logger = structlog.get_logger(__name__)

#: how long a Step or a Turn waits for a revision that is being loaded, before it begins with the old one
PATIENCE_SECONDS = 10.0
#: how old a change may be that a worker that starts tells of once more
TELL_AGAIN_SECONDS = 120.0
#: how long a worker that has activated a revision may take to announce that it runs it
TELLING_SECONDS = 3.0
#: how often that is checked, and whether another worker has decided on a proposal
HEARING_SECONDS = 0.1
#: how often, in one look, another worker may be faster
ATTEMPTS = 5
#: how often the record's life is renewed and old checkouts are removed
UPKEEP_SECONDS = 3_600.0
#: how long an unused checkout stays
CHECKOUT_SECONDS = 7 * 86_400.0

#: how long an unknown worker of another machine may take to register, before its load counts as lost
START_SECONDS = 60.0
#: the same for one in a container with our host's name: most likely our predecessor
RESTART_SECONDS = 10.0
#: no load takes longer: another program has the process id of a worker that has ended
LONGEST_SECONDS = 600.0


class LostLoadingsError(ConfigError):
    """Loading the revision has ended the workers that tried."""

    suggestion = "Keep what ends a process, or takes all its memory, out of what is run at import."


class LoadedElsewhereError(Exception):
    """Another worker loads the revision."""


class CrashLoopGuard:
    """Notes each load in the record before it begins, and removes the note when it has ended."""

    def __init__(
        self,
        record: ActiveRevision,
        workers: Callable[[], Iterable[WorkerRecord]],
        *,
        clock: Callable[[], float] = wall_clock,
        process: ProcessIdentity | None = None,
    ) -> None:
        self._record = record
        self._workers = workers
        self._clock = clock
        self._process = process or this_process()

    @property
    def worker(self) -> str:
        """The name of this process."""
        return self._process.name

    @contextlib.contextmanager
    def noted(self, ref: str, *, is_alone: bool = False) -> Iterator[None]:
        """Load a revision in the block; with ``is_alone``, only if no other worker does. Redis may be away.

        Raises:
            LostLoadingsError: too many workers have ended with it; the block is not entered.
            LoadedElsewhereError: another worker loads it; the block is not entered.
        """
        us = self._process
        loading = RevisionLoading(
            ref=ref, worker=us.name, worker_id=us.id, place=us.place, since=iso_time(self._clock())
        )
        turn: LoadingTurn = "ours"
        with _unless_redis_is_away():
            turn = self._record.begin_loading(loading, is_lost=self._is_lost)
        if turn == "nobody's":
            raise LostLoadingsError(f"{MOST_LOST_LOADINGS} workers have ended while they loaded {ref}.")
        if turn == "theirs" and is_alone:
            raise LoadedElsewhereError(ref)
        try:
            yield
        finally:
            with _unless_redis_is_away():
                self._record.end_loading(ref, us.id)

    def are_elsewhere(self, state: RevisionState, ref: str) -> bool:
        """Return whether another living worker loads a revision."""
        loading = state.loading_of(ref)
        return loading is not None and loading.worker_id != self._process.id and not self._is_lost(loading)

    def are_open(self, state: RevisionState) -> bool:
        """Return whether any living worker loads a revision: one that starts may not have registered yet."""
        return any(not self._is_lost(loading) for loading in state.loading)

    def _is_lost(self, loading: RevisionLoading) -> bool:
        """Return whether the worker of a load has ended, as far as can be told from here."""
        us, (pid, _, host) = self._process, loading.worker.partition("@")
        age = datetime.fromtimestamp(self._clock() / 1000, UTC) - datetime.fromisoformat(loading.since)
        if loading.worker_id == us.id:
            return False
        if loading.place == us.place:
            is_over = age > timedelta(seconds=LONGEST_SECONDS)
            return is_over or int(pid) == us.pid or not _is_running(int(pid))
        if any(worker.id == loading.worker_id for worker in self._workers()):
            return False
        return age > timedelta(seconds=RESTART_SECONDS if host == us.host else START_SECONDS)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError):  # without /proc, a zombie counts as running
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    return True


@contextlib.contextmanager
def _unless_redis_is_away() -> Iterator[None]:
    try:
        yield
    except (RedisError, ValueError) as error:
        logger.warning("revision.loading_not_noted", reason=str(error))


class RevisionNews:
    """Tells this worker's extensions of changes and, if the policy says so, the agent that committed."""

    def __init__(self, revisions: Revisions, handoffs: Handoffs, swarm: str | None) -> None:
        self._revisions = revisions
        self._handoffs = handoffs
        self._swarm = swarm

    def tell(self, change: RevisionChange) -> None:
        """Tell that another revision is active."""
        revision, served = self._revisions.active, self._revisions.served
        on_new_thread(lambda: _emit(revision, served, change))
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


def _emit(revision: Revision, agents: tuple[str, ...], change: RevisionChange) -> None:
    for agent in agents:
        revision.extensions.services.events.emit(agent, CHANGED, change.to_wire())


class RevisionSync:
    """Keeps the active revision of one worker process that of its workspace."""

    def __init__(
        self,
        bundle: FollowedBundle,
        record: ActiveRevision,
        revisions: Revisions,
        *,
        stand_by: StandBy,
        notes: CrashLoopGuard,
        news: RevisionNews,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._bundle = bundle
        self._record = record
        self._revisions = revisions
        self._stand_by = stand_by
        self._notes = notes
        self._news = news
        self._clock = clock
        #: the active revision that cannot be loaded here, and since when
        self._lacked: tuple[str, float] | None = None
        #: apart from the failures of calls, which may run with a revision that is loaded in part
        self._failures = LoadFailures(clock)
        self._has_begun = False
        #: the revision that this process starts with, if it is to replace the active one
        self._untried: str | None = None
        #: the proposal tried last
        self._tried: RevisionChange | None = None
        #: the revisions that the last look asked for in vain
        self._missed: frozenset[str] = frozenset()
        #: the revisions that a Step or a Turn has awaited in vain
        self._unawaited: frozenset[str] = frozenset()
        self._kept_at = -UPKEEP_SECONDS
        self._lookout = Lookout(self.look, revisions.close_unused, self._keep_up)

    def start(self) -> None:
        """Agree with the other workers on the revision to start with, and follow it on a thread.

        Without Redis that is the bundle's folder, and agreement comes later.
        """
        try:
            self._begin()
        except (RedisError, ValueError) as error:
            log_unread(error)
        self._revisions.reach_safe_point = self.reach_safe_point
        self._lookout.start()

    def serve(self, *agents: str) -> None:
        """Prepare for more agents; a revision that cannot be prepared gives way to the one before it.

        Raises:
            ConfigError: neither can be.
        """
        if set(agents) <= set(self._revisions.served):
            return
        try:
            self._serve(*agents)
        except ConfigError as error:
            if not self._gives_way(error, agents):
                raise
            self._serve(*agents)

    def _serve(self, *agents: str) -> None:
        with self._notes.noted(self._own_ref):
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
            log_unread(error)
            return
        asked = frozenset() if state is None else _asked_for(state) - {self._own_ref} - self._missed
        if (state is None or asked - self._unawaited) and not self._lookout.looks_within(PATIENCE_SECONDS):
            logger.warning("revision.not_awaited", runs=self._own_ref, seconds=PATIENCE_SECONDS)
            self._unawaited = asked

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
        self._begin_with(self._own_ref, self._record.begin(self._own_ref))
        self._has_begun = True

    def _begin_with(self, ours: str, state: RevisionState) -> None:
        if state.active == ours:
            self._tell_again(state.change)
            return
        has_failed = state.failed is not None and state.failed.ref == ours
        if not has_failed and ours not in state.abandoned and self._supersedes(ours, state.active):
            self._untried = ours
            self._record.propose(RevisionChange(new_ref=ours, timestamp=_now()))
            return
        try:
            self._revisions.activate(state.active)
        except GoondanError as error:
            logger.warning("revision.not_active_here", ref=state.active, runs=ours, reason=error.message)
        else:
            self._tell_again(state.change)

    def _tell_again(self, change: RevisionChange | None) -> None:
        """Tell of a recent change: the worker that made it may have died before it did.

        The event for the agent that committed has an identity of its own, so that it arrives once.
        """
        if change is None:
            return
        age = wall_clock() / 1000 - datetime.fromisoformat(change.timestamp).timestamp()
        if age < TELL_AGAIN_SECONDS:
            self._news.tell(change)

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
        if proposed != self._tried:
            self._tried = proposed
            self._failures.forget(proposed.new_ref)
            self._revisions.forget_failure(proposed.new_ref)
        ref = proposed.new_ref
        try:
            with self._failures.noted(ref), self._notes.noted(ref, is_alone=True):
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
        while (
            (state := self._record.state()) is not None
            and state.proposed == proposed
            and self._notes.are_elsewhere(state, proposed.new_ref)
        ):
            sleep(HEARING_SECONDS)

    def _follows(self, state: RevisionState, missed: set[str]) -> bool:
        """Activate here what is active; return whether the record may be another one now."""
        before, ref = self._own_ref, state.active
        if ref == before:
            self._lacked = None
            self._stand_by.have()
            return False
        self._stand_by.lack(ref)
        try:
            with self._failures.noted(ref), self._notes.noted(ref):
                revision = self._revisions.of(ref)
                # The tools, too: at their first calls it is too late to keep the old revision. The first
                # revision may have a tool that does not load, as where no revisions are followed.
                if state.change is not None:
                    revision.load_tools(self._revisions.served)
            self._revisions.activate(ref)
        except BundleRevisionUnavailableError as error:
            self._do_without(ref, error, missed)
            return False
        except GoondanError as error:
            if not self._was_lacked_long(ref) or self._stand_by.is_covered(ref, self._revisions.served):
                self._do_without(ref, error, missed)
                return False
            has_one_before = state.change is not None and state.change.previous_ref is not None
            if has_one_before or state.failed is None or state.failed.ref != ref:
                self._withdraw(ref, error)
            return has_one_before
        logger.info("revision.changed", ref=ref, previous=before)
        self._news.tell(state.change or RevisionChange(previous_ref=before, new_ref=ref, timestamp=_now()))
        return True

    def _was_lacked_long(self, ref: str) -> bool:
        """Return whether other workers that run this revision would have announced it by now."""
        if self._lacked is None or self._lacked[0] != ref:
            self._lacked = ref, self._clock()
        return self._clock() - self._lacked[1] >= TELLING_SECONDS

    def _miss(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without a revision; a later look tries again."""
        missed.add(ref)
        if ref not in self._missed:
            logger.warning("revision.unavailable", ref=ref, runs=self._own_ref, reason=error.message)

    def _do_without(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without the active revision; its calls are left to workers that have it."""
        self._miss(ref, error, missed)
        self._stand_by.lack(ref, is_unavailable=True)

    def _withdraw(self, ref: str, error: GoondanError, *, is_proposed: bool = False) -> None:
        logger.error("revision.withdrawn", ref=ref, code=error.code, reason=error.message)
        worker, at = self._notes.worker, _now()
        failure = self._record.withdraw(
            RevisionFailure(ref=ref, code=error.code, reason=error.message, worker=worker, timestamp=at),
            is_proposed=is_proposed,
        )
        if failure is not None:
            self._news.tell_failure(failure)

    def _gives_way(self, error: ConfigError, agents: Iterable[str]) -> bool:
        """Withdraw the revision that this process started with; return whether another one is active now.

        It is not withdrawn if other workers serve all of the agents with it: then this one does not serve.
        """
        failed = self._own_ref
        try:
            if self._is_covered_soon(failed, agents):
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

    def _is_covered_soon(self, ref: str, agents: Iterable[str]) -> bool:
        """Return whether others serve these agents with a revision; one just activated is announced soon."""
        state = self._record.state()
        was_made_active = state is not None and state.active == ref and state.change is not None
        end = monotonic() + (TELLING_SECONDS if was_made_active else 0.0)
        while not (is_covered := self._stand_by.is_covered(ref, agents)) and monotonic() < end:
            sleep(HEARING_SECONDS)
        return is_covered

    def _keep_up(self) -> None:
        if monotonic() - self._kept_at > UPKEEP_SECONDS:
            self._kept_at = monotonic()
            self._record.keep()
            on_new_thread(lambda: attempt(lambda: _clean_up(self._bundle.checkouts)))


def _clean_up(checkouts: Checkouts) -> None:
    try:
        clean_checkouts(checkouts.cache, CHECKOUT_SECONDS)
    finally:
        checkouts.forget_fetched()


def _asked_for(state: RevisionState) -> frozenset[str]:
    return frozenset({state.active} | ({state.proposed.new_ref} if state.proposed else set()))


def _now() -> str:
    return iso_time(wall_clock())


def is_followed_elsewhere(
    agents: Collection[str], record: ActiveRevision, workers: Callable[[], Iterable[WorkerRecord]]
) -> bool:
    """Say whether workers of these agents live that follow revisions: then a new worker does, too.

    Calls name the revision that those agree on. If there are none, and none is about to be, nobody keeps the
    record up, and what earlier workers said is active is forgotten: calls that asked for it could not be run.
    """
    try:
        state = record.state()
        if state is None:
            return False
        if any(one.bundle_ref is not None and not set(agents).isdisjoint(one.agents) for one in workers()):
            return True
        if not CrashLoopGuard(record, workers).are_open(state):
            record.end(state)
    except (RedisError, ValueError) as error:
        logger.warning("revision.record_not_read", reason=str(error))
    return False


def not_followed(record: ActiveRevision, followed: Callable[[], FollowedBundle]) -> Fetch:
    """Return what gets revisions for a worker that follows none: those that calls name because others do."""

    def fetch(ref: str) -> tuple[Bundle, Checkout]:
        try:
            state = record.state()
        except (RedisError, ValueError) as error:
            raise _unavailable(ref) from error
        before = state.change.previous_ref if state and state.change else None
        if state is None or ref not in (state.active, before):
            raise _unavailable(ref)
        try:
            return followed().load(ref)
        except UnfollowableError as error:
            raise _unavailable(ref) from error

    return fetch


def _unavailable(ref: str) -> BundleRevisionUnavailableError:
    return BundleRevisionUnavailableError(
        f"The revision {ref} cannot be had: this worker does not follow revisions.",
        suggestion="Let the Swarm's policy.changesets be enabled, or set GOONDAN_BUNDLE_REMOTE, "
        "for all workers.",
    )
