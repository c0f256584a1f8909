"""The revisions of the bundle that a worker process has loaded: the active one, and others still in use."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from time import monotonic
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

import structlog

from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.failure import named_error
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import STEP_TOOL
from goondan_tasks.revisions.checkouts import Checkout
from workers.agents.entry_steps import StepsNow
from workers.concurrency.threads import on_new_thread
from workers.job import Job, JobState
from workers.outcome import outcome_of
from workers.revisions.revision import Revision
from workers.tools.registry import Registry
from workers.turns.steps import Steps

logger = structlog.get_logger(__name__)

#: how long an inactive revision is kept after its last call
UNUSED_SECONDS = 60.0
#: how many such revisions are kept; one just used stays in any case, since its caller must not find it closed
MOST_UNUSED = 4
JUST_USED_SECONDS = 2.0
#: how long a failed load is not repeated, so that not every call waits for a slow fetch
AGAIN_SECONDS = 5.0

#: returns the bundle at a ref, and its checkout
Fetch = Callable[[str], tuple[Bundle, Checkout]]


@dataclass(frozen=True, slots=True)
class LoadFailures:
    """The recent failures to load, by ref."""

    clock: Callable[[], float]
    #: time and error; without the traceback, which would keep everything alive that was loaded by then
    _failed: dict[str, tuple[float, GoondanError]] = field(default_factory=dict)

    @contextlib.contextmanager
    def noted(self, ref: str) -> Iterator[None]:
        """Load a revision in the block, and remember its failure.

        Raises:
            GoondanError: the block fails, or is not entered because it failed less than AGAIN_SECONDS ago.
        """
        at, failure = self._failed.get(ref, (0.0, None))
        if failure is not None and self.clock() - at < AGAIN_SECONDS:
            raise _copy(failure)
        try:
            yield
        except GoondanError as error:
            for old, (then, _) in list(self._failed.items()):
                if self.clock() - then >= AGAIN_SECONDS:
                    self.forget(old)
            self._failed[ref] = self.clock(), _copy(error)
            raise
        self.forget(ref)

    def forget(self, ref: str) -> None:
        """Let a revision be tried again at once."""
        self._failed.pop(ref, None)


def _copy(error: GoondanError) -> GoondanError:
    is_unavailable = isinstance(error, BundleRevisionUnavailableError)
    kind = BundleRevisionUnavailableError if is_unavailable else ConfigError
    return kind(error.message, code=error.code, suggestion=error.suggestion)


@dataclass(slots=True)
class _KeptRevision:
    """A loaded revision and its use."""

    revision: Revision
    #: on the clock of :class:`Revisions`
    last_used: float
    #: the agents that it is prepared for
    prepared_for: tuple[str, ...]
    #: the calls that run with it; others that nobody has let go of yet have ended
    jobs: WeakSet[Job] = field(default_factory=WeakSet)

    def is_idle(self, now: float) -> bool:
        """Return whether no call runs with it and no Step is open; running calls use it until ``now``."""
        if any(job.state is not JobState.ENDED for job in self.jobs):
            self.last_used = now
            return False
        return self.revision.steps.are_closed


class RevisionMaker(Protocol):
    """Makes revisions: :class:`workers.revisions.factory.RevisionFactory`."""

    def revision(
        self, bundle: Bundle, ref: str | None, *, steps_now: StepsNow, checkout: Checkout | None = None
    ) -> Revision:
        """Make one revision, which closes ``checkout``; ``steps_now`` opens the Steps of agents' entries."""


class Revisions:
    """Gives each call the revision that it names, or the active one."""

    def __init__(
        self,
        factory: RevisionMaker,
        first: Bundle,
        *,
        fetch: Fetch,
        ref: str | None = None,
        checkout: Checkout | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._factory = factory
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._is_followed = ref is not None
        self._active = self._made(first, ref, checkout)
        #: all loaded revisions by ref; empty where revisions are not followed
        self._kept: dict[str, _KeptRevision] = (
            {} if ref is None else {ref: _KeptRevision(self._active, clock(), ())}
        )
        self._loading: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        #: shared by calls and this process's RevisionSync
        self.failures = LoadFailures(clock)
        self._served: tuple[str, ...] = ()
        #: called before a Step or a Turn begins; may activate another revision
        self.reach_safe_point: Callable[[], object] = lambda: None

    @property
    def active(self) -> Revision:
        """The revision of new Steps, and of new Turns without Steps."""
        return self._active

    @property
    def served(self) -> tuple[str, ...]:
        """The agents that this process serves; empty until it takes calls."""
        return self._served

    def serve(self, *agents: str) -> None:
        """Prepare the active revision for more agents; other revisions are prepared when they are used.

        Raises:
            ConfigError: the entry or an extension of an agent cannot be used.
        """
        while new := [agent for agent in agents if agent not in self._served]:
            active, before = self._active, self._served
            served = (*before, *new)
            active.prepare(served)
            with self._lock:
                # otherwise try again with the revision that is active by now
                if active is self._active and before == self._served:
                    self._served = served
                    if active.ref in self._kept:
                        self._kept[active.ref].prepared_for = served

    def of(self, ref: str | None) -> Revision:
        """Return a revision, loading it if necessary; this blocks.

        Raises:
            BundleRevisionUnavailableError: it cannot be fetched or checked out.
            ConfigError: it is not valid, or one of its extensions cannot be used.
        """
        active = self._active
        if ref is None or ref == active.ref:
            return active
        kept = self._kept.get(ref)
        if kept is not None and kept.prepared_for == self._served:
            kept.last_used = self._clock()
            return kept.revision
        with self._lock:
            loading = self._loading.setdefault(ref, threading.Lock())
        with loading:
            return self._ready(ref)

    def activate(self, ref: str) -> Revision:
        """Make a revision active in this process; raises as :meth:`of`."""
        while True:
            revision = self.of(ref)
            with self._lock:
                if revision.ref == self._active.ref:
                    return revision
                kept = self._kept.get(ref)
                # otherwise it was just closed, or more agents are served by now
                if kept is not None and kept.revision is revision and kept.prepared_for == self._served:
                    self._kept[self._active.ref or ref].last_used = self._clock()
                    self._active = revision
                    return revision

    def close_unused(self) -> None:
        """Close, on other threads, the inactive revisions that were not used for a while."""
        now = self._clock()
        with self._lock:
            unused = (one for one in self._kept.values() if one.revision is not self._active)
            idle = [one for one in unused if one.is_idle(now)]
            idle.sort(key=lambda one: one.last_used, reverse=True)
            limits = (UNUSED_SECONDS if place < MOST_UNUSED else JUST_USED_SECONDS for place in count())
            closed = [one for one, limit in zip(idle, limits, strict=False) if now - one.last_used > limit]
            for one in closed:
                self._kept.pop(one.revision.ref or "")
        for one in closed:
            on_new_thread(partial(_close, one.revision))

    def stop(self, seconds: float) -> None:
        """Tell extensions that the process is stopping, and wait up to ``seconds`` for them."""
        with self._lock:
            loaded = [kept.revision for kept in self._kept.values()] or [self._active]
        threads = [
            threading.Thread(target=one.extensions.services.events.stop, args=[seconds], daemon=True)
            for one in loaded
        ]
        end = monotonic() + seconds
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                thread.run()  # on this one
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, end - monotonic()))

    def registry(self, ref: str | None) -> Registry:
        """Return the tools of a revision; raises as :meth:`of`."""
        return self.of(ref).registry

    def fixed(self, call: ToolCall) -> ToolCall:
        """Return a call with its revision filled in; for a Step or an event this is a Safe Point.

        The revision is fixed before the claim, because its rules for running the call again are part of the
        claim. Where revisions are not followed, the call is returned unchanged.
        """
        if not self._is_followed or call.bundle_ref is not None:
            return call
        if is_event(call) or call.tool_name == STEP_TOOL:
            self.reach_safe_point()
        ref = self._ref_of_step(call) or self._active.ref
        return call.model_copy(update={"bundle_ref": ref})

    def loaded(self, job: Job) -> Revision | None:
        """Return the revision of a claimed call if that is the active one; it stays open for the call."""
        active = self._active
        if job.bundle_ref is not None and job.bundle_ref != active.ref:
            return None
        if self._is_followed:
            with self._lock:
                kept = self._kept.get(active.ref or "")
                if kept is None:  # it was just replaced, and closed
                    return None
                kept.jobs.add(job)
        return active

    def opened(self, job: Job) -> Revision:
        """Return the revision of a claimed call, loading it if necessary; it stays open for the call.

        This blocks; raises as :meth:`of`.
        """
        if not self._is_followed and job.bundle_ref is None:
            return self._active
        while True:
            ref = self.of(job.bundle_ref).ref or ""
            with self._lock:
                kept = self._kept.get(ref)
                if kept is not None:  # otherwise it was just closed
                    kept.jobs.add(job)
                    return kept.revision

    def _ready(self, ref: str) -> Revision:
        """Load a revision, or prepare it for new agents; called by one thread at a time for each ref."""
        kept, served = self._kept.get(ref), self._served
        if kept is not None and kept.prepared_for == served:
            return kept.revision
        with self.failures.noted(ref):
            outcome = outcome_of(lambda: self._prepared(ref, kept, served))
            if outcome.error is not None:
                raise _load_error(ref, outcome.error)
        return outcome.get()

    def _prepared(self, ref: str, kept: _KeptRevision | None, served: tuple[str, ...]) -> Revision:
        if kept is not None:
            kept.revision.try_out(served)
            kept.revision.prepare(served)
            kept.prepared_for = served
            return kept.revision
        revision = self._load(ref, served)
        with self._lock:
            self._kept[ref] = _KeptRevision(revision, self._clock(), served)
        return revision

    def _load(self, ref: str, served: tuple[str, ...]) -> Revision:
        bundle, checkout = self._fetch(ref)
        with contextlib.ExitStack() as undo:
            undo.callback(checkout.close)
            revision = self._made(bundle, ref, checkout)
            undo.pop_all()
            undo.callback(revision.close)
            revision.try_out(served)
            revision.prepare(served)
            undo.pop_all()
        logger.info("revision.loaded", ref=ref)
        return revision

    def _made(self, bundle: Bundle, ref: str | None, checkout: Checkout | None) -> Revision:
        return self._factory.revision(bundle, ref, steps_now=self._steps_now, checkout=checkout)

    def _steps_now(self) -> Steps:
        if self._is_followed:
            self.reach_safe_point()
        return self._active.steps

    def _ref_of_step(self, call: ToolCall) -> str | None:
        """Return the revision of a call's Step; an invalid Step is refused later, at admission."""
        if call.step_id is None:
            return None
        try:
            return self._active.steps.require(call).record.bundle_ref
        except GoondanError:
            return None


def _close(revision: Revision) -> None:
    revision.close()
    logger.info("revision.closed", ref=revision.ref)


def _load_error(ref: str, error: BaseException) -> GoondanError:
    """Return the error of a failed load; for a problem of this machine, one that may pass."""
    if isinstance(error, GoondanError):
        return error
    kind = BundleRevisionUnavailableError if isinstance(error, OSError | MemoryError) else ConfigError
    logger.error("revision.not_loaded", ref=ref, exc_info=error)
    failure = kind(f"The revision {ref} cannot be loaded: {named_error(error)}")
    failure.__cause__ = error
    return failure
