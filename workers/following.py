"""A worker follows the revisions of its bundle: it takes the next one at a Safe Point (000 §12.4).

Whoever commits proposes a revision (:mod:`goondan_tasks.revisions.active`). A worker that sees a proposal
loads it whole; the first that has done so makes it active, one that cannot withdraws it. One thread does
this. It looks when a Step or a Turn begins, and now and then besides, so that mostly the revision is there
by then.
"""

import os
import socket
import threading
from collections.abc import Callable
from time import monotonic
from typing import NoReturn

import structlog
from redis.exceptions import RedisError

from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import iso_time
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange, RevisionFailure, RevisionState
from goondan_tasks.revisions.checkouts import clean_checkouts
from goondan_tasks.revisions.followed import FollowedBundle
from workers.beside_loop import on_new_thread, outcome_of
from workers.revisions import Fetch, Revisions

logger = structlog.get_logger(__name__)

#: how often the thread looks unasked
LOOK_SECONDS = 1.0
#: how long a Step or a Turn waits for a revision that is being loaded, before it begins with the old one
PATIENCE_SECONDS = 10.0
#: how often the record is kept alive, and old checkouts are removed
UPKEEP_SECONDS = 3_600.0
#: how long a checkout stays that nobody opens
CHECKOUT_SECONDS = 7 * 86_400.0
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
        told: Callable[[RevisionChange], object],
        told_failure: Callable[[RevisionFailure], object] = lambda _: None,
    ) -> None:
        self._bundle = bundle
        self._record = record
        self._revisions = revisions
        self._told = told
        self._told_failure = told_failure
        self._has_begun = False
        self._kept_at = -UPKEEP_SECONDS
        #: what the last look found asked for, and could not have
        self._missed: frozenset[str] = frozenset()
        self._rounds = threading.Condition()
        self._asked = 0
        self._answered = 0

    def start(self) -> None:
        """Agree with the other workers on what to begin with, and follow them, on a thread.

        Without Redis that is the bundle's folder, and is made up for later.
        """
        try:
            self._begin()
        except (RedisError, ValueError) as error:
            _log_unread(error)
        self._revisions.reach_safe_point = self.reach_safe_point
        threading.Thread(target=self._run, name="goondan-following", daemon=True).start()

    def serve(self, *agents: str) -> None:
        """Prepare for more agents; a revision that cannot be gives way to the one before it.

        Raises:
            ConfigError: neither can be.
        """
        try:
            self._revisions.serve(*agents)
        except ConfigError as error:
            if not self._gives_way(error):
                raise
            self._revisions.serve(*agents)

    def reach_safe_point(self) -> None:
        """Take what is proposed, or active elsewhere, before a Step or a Turn begins; this blocks."""
        try:
            state = self._record.state()
        except (RedisError, ValueError) as error:
            _log_unread(error)
            return
        if state is None or _asked_for(state) - {self._own_ref} - self._missed:
            self._have_it_looked_at()

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
        ours = self._own_ref
        state = self._record.begin(ours)
        self._has_begun = True
        if state.active == ours:
            return
        if self._supersedes(ours, state.active):
            self._record.propose(RevisionChange(new_ref=ours, timestamp=_now()))
            return
        try:
            self._revisions.activate(state.active)
        except GoondanError as error:
            logger.warning("revision.not_active_here", ref=state.active, runs=ours, reason=error.message)

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
        try:
            self._revisions.of(proposed.new_ref)
        except BundleRevisionUnavailableError as error:
            self._miss(proposed.new_ref, error, missed)
            return False
        except GoondanError as error:
            self._withdraw(proposed.new_ref, error)
        else:
            self._record.activate(proposed.new_ref)
        return True

    def _follows(self, state: RevisionState, missed: set[str]) -> bool:
        """Make active here what is active; say whether the record may be another one now."""
        before, ref = self._own_ref, state.active
        if ref == before:
            return False
        try:
            self._revisions.activate(ref)
        except BundleRevisionUnavailableError as error:
            self._miss(ref, error, missed)
            return False
        except GoondanError as error:
            has_one_before = state.change is not None and state.change.previous_ref is not None
            if has_one_before or state.failed is None or state.failed.ref != ref:
                self._withdraw(ref, error)
            return has_one_before
        logger.info("revision.changed", ref=ref, previous=before)
        self._told(state.change or RevisionChange(previous_ref=before, new_ref=ref, timestamp=_now()))
        return True

    def _miss(self, ref: str, error: GoondanError, missed: set[str]) -> None:
        """Go on without a revision that cannot be had here: a later look tries again."""
        missed.add(ref)
        if ref not in self._missed:
            logger.warning("revision.unavailable", ref=ref, runs=self._own_ref, reason=error.message)

    def _withdraw(self, ref: str, error: GoondanError) -> None:
        logger.error("revision.withdrawn", ref=ref, code=error.code, reason=error.message)
        worker = f"{os.getpid()}@{socket.gethostname()}"
        failure = self._record.withdraw(
            RevisionFailure(ref=ref, code=error.code, reason=error.message, worker=worker, timestamp=_now())
        )
        if failure is not None:
            self._told_failure(failure)

    def _gives_way(self, error: ConfigError) -> bool:
        """Withdraw the revision that this process began with; say whether there is another one now."""
        failed = self._own_ref
        try:
            self._withdraw(failed, error)
            state = self._record.state()
            if state is None or state.active == failed:
                return False
            self._revisions.activate(state.active)
        except (RedisError, ValueError, GoondanError) as refusal:
            logger.warning("revision.does_not_give_way", ref=failed, reason=str(refusal))
            return False
        return True

    def _have_it_looked_at(self) -> None:
        with self._rounds:
            self._asked += 1
            round_ = self._asked
            self._rounds.notify_all()
            if not self._rounds.wait_for(lambda: self._answered >= round_, PATIENCE_SECONDS):
                logger.warning("revision.not_awaited", runs=self._own_ref, seconds=PATIENCE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._rounds:
                self._rounds.wait_for(lambda: self._asked > self._answered, LOOK_SECONDS)
                round_ = self._asked
            self._try(self.look)
            with self._rounds:
                self._answered = round_
                self._rounds.notify_all()
            self._revisions.close_unused()
            self._try(self._keep_up)

    def _try(self, what: Callable[[], None]) -> None:
        """Do something; whatever comes of it the thread goes on."""
        error = outcome_of(what).error
        if isinstance(error, RedisError | ValueError):
            _log_unread(error)
        elif error is not None:
            logger.error("revision.not_followed", exc_info=error)

    def _keep_up(self) -> None:
        if monotonic() - self._kept_at > UPKEEP_SECONDS:
            self._kept_at = monotonic()
            self._record.keep()
            on_new_thread(lambda: self._try(self._clean_up))

    def _clean_up(self) -> None:
        checkouts = self._bundle.checkouts
        try:
            clean_checkouts(checkouts.cache, CHECKOUT_SECONDS)
        finally:
            checkouts.forget_fetched()


def not_followed(record: ActiveRevision) -> Fetch:
    """Return what gets no other revision, for a worker that follows none.

    What earlier workers said is active is forgotten: calls that asked for it could not be run.
    """
    try:
        record.end()
    except RedisError as error:
        _log_unread(error)

    def fetch(ref: str) -> NoReturn:
        raise BundleRevisionUnavailableError(
            f"The revision {ref} cannot be had: this worker does not follow revisions.",
            suggestion="Let the Swarm's policy.changesets be enabled, or set GOONDAN_BUNDLE_REMOTE, "
            "for all workers.",
        )

    return fetch


def _asked_for(state: RevisionState) -> frozenset[str]:
    return frozenset({state.active} | ({state.proposed.new_ref} if state.proposed else set()))


def _now() -> str:
    return iso_time(wall_clock())


def _log_unread(error: Exception) -> None:
    logger.warning("revision.record_not_read", reason=str(error))
