"""Revisions that are made of nothing: what they are asked for is written down."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, GoondanError
from tests.unit.workers.runs import job_of
from workers.job import JobState
from workers.revisions.revisions import Revisions


class FakeRevision:
    """A revision that says its ref to every call."""

    def __init__(self, ref: str | None, error: BaseException | None, checkout: Any) -> None:
        self.ref = ref
        self.prepared: list[str] = []
        self.tried_out: list[str] = []
        self.is_closed = False
        self.steps = SimpleNamespace(are_closed=True)
        self.bundle = SimpleNamespace(agents=("lizard", "newt"))
        #: what the files of newt are not tried out with
        self.deadly: GoondanError | None = None
        #: runs amid each call
        self.amid: Callable[[], object] = lambda: None
        #: runs amid each preparation
        self.amid_preparing: Callable[[], object] = lambda: None
        self._error = error
        #: what its tools are not loaded with
        self.tool_error: GoondanError | None = None
        self._checkout = checkout

    def prepare(self, agents: tuple[str, ...]) -> None:
        if self._error is not None and agents:
            raise self._error
        self.amid_preparing()
        self.prepared = list(agents)

    def try_out(self, agents: tuple[str, ...]) -> None:
        self.tried_out += [agent for agent in agents if agent not in self.tried_out]
        if self.deadly is not None and "newt" in agents:
            raise self.deadly

    def load_tools(self, agents: tuple[str, ...]) -> None:
        assert self.prepared == list(agents)
        if self.tool_error is not None:
            raise self.tool_error

    def close(self) -> None:
        self.is_closed = True
        if self._checkout is not None:
            self._checkout.close()

    def run(self) -> str | None:
        assert not self.is_closed
        self.amid()
        assert not self.is_closed
        return self.ref


class Factory:
    """Makes revisions, and their checkouts; some cannot be had, or prepared."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(help_url="https://help/")
        self.made: list[FakeRevision] = []
        self.fetched: list[str] = []
        self.missing: set[str] = set()
        self.faults: dict[str, BaseException] = {}
        self.tool_faults: dict[str, GoondanError] = {}
        #: what ends a process that imports the files of newt
        self.deadly: dict[str, GoondanError] = {}
        #: refs that cannot be put together, and why
        self.misfits: dict[str, BaseException] = {}
        #: how many checkouts are open
        self.open_checkouts = 0
        self.now = 1_000.0

    def revision(self, _: Any, ref: str | None, *, steps_now: Any, checkout: Any) -> FakeRevision:
        del steps_now
        if ref in self.misfits:
            raise self.misfits[ref]
        made = FakeRevision(ref, self.faults.get(ref or ""), checkout)
        made.tool_error = self.tool_faults.get(ref or "")
        made.deadly = self.deadly.get(ref or "")
        self.made.append(made)
        return made

    def fetch(self, ref: str) -> Any:
        self.fetched.append(ref)
        if ref in self.missing:
            raise BundleRevisionUnavailableError(f"{ref} is not here.")
        self.open_checkouts += 1
        return object(), SimpleNamespace(close=self._close_checkout)

    def _close_checkout(self) -> None:
        self.open_checkouts -= 1

    def revisions(self, ref: str | None = "r1") -> Revisions:
        """Return the revisions of a process that begins with ``ref``."""
        factory: Any = self
        first: Any = object()
        return Revisions(factory, first, fetch=self.fetch, ref=ref, clock=lambda: self.now)

    def alive(self) -> set[str | None]:
        """Return the refs of the revisions that are not closed."""
        return {one.ref for one in self.made if not one.is_closed}


def run(revisions: Revisions, ref: str | None = None, tool: str = "skin__colour") -> str | None:
    """Run a call of a revision on this thread, and return its revision; what a claim does before, too.

    Raises:
        GoondanError: there is no such revision.
    """
    job = job_of(revisions.fixed(new_call("lizard", tool, {}, {}).model_copy(update={"bundle_ref": ref})))
    revision: Any = revisions.opened(job)
    ran = revision.run()
    job.state = JobState.ENDED
    return cast(str | None, ran)
