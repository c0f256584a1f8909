"""A worker follows the revisions of its bundle: it takes the next one at a Safe Point (000 §12.4).

Whoever commits proposes a revision (:mod:`goondan_tasks.revisions.active`). One worker loads it whole while
the others wait, and makes it active, or withdraws it; then the others load what is active. One thread does
this (:mod:`workers.concurrency.lookout`). It looks when a Step or a Turn begins, and now and then besides, so
that mostly the revision is there by then.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from time import monotonic, sleep

import structlog
from redis.exceptions import RedisError

from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import iso_time
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange, RevisionFailure, RevisionState
from goondan_tasks.revisions.followed import FollowedBundle
from workers.concurrency.lookout import Lookout, log_unread
from workers.revisions.load_failures import LoadFailures
from workers.revisions.loading_notes import LoadedElsewhereError, LoadingNotes
from workers.revisions.revision_news import RevisionNews
from workers.revisions.revision_upkeep import RevisionUpkeep
from workers.revisions.revisions import Revisions
from workers.revisions.stand_by import StandBy

logger = structlog.get_logger(__name__)

#: how long a Step or a Turn waits for a revision that is being loaded, before it begins with the old one
PATIENCE_SECONDS = 10.0
#: how old a change may be of which a worker that begins tells once more
TELL_AGAIN_SECONDS = 120.0
#: how long whoever has made a revision active may take to say that it runs it
TELLING_SECONDS = 3.0
#: how often that is looked for, and whether another worker has decided on a proposal
HEARING_SECONDS = 0.1
#: how often, in one look, somebody else may be faster
ATTEMPTS = 5


class Following:
    """Keeps what is active in one worker process what is active in its workspace."""

    def __init__(
        self,
        bundle: FollowedBundle,
        record: ActiveRevision,
        revisions: Revisions,
        *,
        stand_by: StandBy,
        notes: LoadingNotes,
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
        #: what is active and cannot be loaded here, and since when
        self._lacked: tuple[str, float] | None = None
        #: a call may run with a revision of which not all can be loaded: those of calls are not these
        self._failures = LoadFailures(clock)
        self._has_begun = False
        #: what this process begins with, if that is to take the place of what is active
        self._untried: str | None = None
        #: what was tried last
        self._tried: RevisionChange | None = None
        #: what the last look found asked for, and could not have
        self._missed: frozenset[str] = frozenset()
        #: what a Step or a Turn has waited for, in vain
        self._unawaited: frozenset[str] = frozenset()
        upkeep = RevisionUpkeep(record, bundle.checkouts)
        self._lookout = Lookout(self.look, revisions.close_unused, upkeep.look)

    def start(self) -> None:
        """Agree with the other workers on what to begin with, and follow them, on a thread.

        Without Redis that is the bundle's folder, and is made up for later.
        """
        try:
            self._begin()
        except (RedisError, ValueError) as error:
            log_unread(error)
        self._revisions.reach_safe_point = self.reach_safe_point
        self._lookout.start()

    def serve(self, *agents: str) -> None:
        """Prepare for more agents; a revision that cannot be gives way to the one before it.

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

        What takes too long is waited for once.
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
        """Do what the record asks for; a worker that serves nobody yet can judge no revision.

        Raises:
            redis.exceptions.RedisError: Redis is away.
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
        """Tell of a change that was made just now: who made it active may have died before it told of it.

        The event for the agent that committed it has an identity of its own, so that twice is once.
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
        """Load a proposal; say whether the record is another one now."""
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
        """Make active here what is active; say whether the record may be another one now."""
        before, ref = self._own_ref, state.active
        if ref == before:
            self._lacked = None
            self._stand_by.have()
            return False
        self._stand_by.lack(ref)
        try:
            with self._failures.noted(ref), self._notes.noted(ref):
                self._load(ref, with_tools=state.change is not None)
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
        """Say whether others that run what cannot be loaded here would have said so by now."""
        if self._lacked is None or self._lacked[0] != ref:
            self._lacked = ref, self._clock()
        return self._clock() - self._lacked[1] >= TELLING_SECONDS

    def _load(self, ref: str, *, with_tools: bool = True) -> None:
        """Load a revision whole, its tools too: at their first calls it is too late to stay with the old one.

        What a bundle begins with may have a tool that does not load, as where no revisions are followed.
        """
        revision = self._revisions.of(ref)
        if with_tools:
            revision.load_tools(self._revisions.served)

    def _miss(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without a revision that cannot be had here: a later look tries again."""
        missed.add(ref)
        if ref not in self._missed:
            logger.warning("revision.unavailable", ref=ref, runs=self._own_ref, reason=error.message)

    def _do_without(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without the revision that is active; calls are left to workers that have it."""
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
        """Withdraw the revision that this process began with; say whether there is another one now.

        One that others serve all of the agents with is not: whoever cannot, does not serve.
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
        """Say whether others run a revision for all of these agents; who has just begun to tells soon."""
        state = self._record.state()
        was_made_active = state is not None and state.active == ref and state.change is not None
        end = monotonic() + (TELLING_SECONDS if was_made_active else 0.0)
        while not (is_covered := self._stand_by.is_covered(ref, agents)) and monotonic() < end:
            sleep(HEARING_SECONDS)
        return is_covered


def _asked_for(state: RevisionState) -> frozenset[str]:
    return frozenset({state.active} | ({state.proposed.new_ref} if state.proposed else set()))


def _now() -> str:
    return iso_time(wall_clock())
