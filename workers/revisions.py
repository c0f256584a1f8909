"""The revisions of the bundle that a worker process has loaded: one is active, older ones end their calls."""

from collections.abc import Callable

from goondan_tasks.bundle import Bundle
from goondan_tasks.errors import GoondanError
from goondan_tasks.failure import describe
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.run import Run
from workers.cancellation import Watch
from workers.contexts import Surroundings
from workers.executor import StartMark
from workers.registry import Registry
from workers.revision import Revision, Workshop

#: returns the bundle as it was at a ref
Fetch = Callable[[str], Bundle]


class Revisions:
    """Runs each call with the revision that it names; one that names none, with the active one."""

    def __init__(self, workshop: Workshop, first: Bundle, *, ref: str | None, fetch: Fetch) -> None:
        self._workshop = workshop
        self._fetch = fetch
        self._active = self._made(first, ref)
        #: the agents that this process serves
        self._served: tuple[str, ...] = ()

    @property
    def active(self) -> Revision:
        """What Steps, and Turns without Steps, begin with now."""
        return self._active

    def serve(self, *agents: str) -> None:
        """Prepare every revision for more agents of this process.

        Raises:
            ConfigError: the entry or an extension of one cannot be used.
        """
        new = [agent for agent in agents if agent not in self._served]
        if new:
            self._active.prepare(new)
            self._served = (*self._served, *new)

    def of(self, ref: str | None) -> Revision:
        """Return a revision, loaded if it is new here; this may block for as long as that takes.

        Raises:
            BundleRevisionUnavailableError: it cannot be had.
            ConfigError: it is not valid, or an extension of it cannot be used.
        """
        if ref is None or ref == self._active.ref:
            return self._active
        return self._made(self._fetch(ref), ref)

    def stop(self, seconds: float) -> None:
        """Let extensions hear that the process stops, for at most so long."""
        self._active.extensions.services.events.stop(seconds)

    def registry(self, ref: str | None) -> Registry:
        """Return the tools of a revision; raises as :meth:`of`."""
        return self.of(ref).registry

    async def execute(
        self, run: Run, mark_started: StartMark, *, watch: Watch, surroundings: Surroundings
    ) -> ToolCallResult:
        """Run a call with its revision's executor; see :meth:`workers.executor.Executor.execute`."""
        try:
            revision = self.of(run.call.bundle_ref or self._ref_of_step(run.call))
        except GoondanError as error:
            return run.failed(describe(error, help_url=self._workshop.settings.help_url), None)
        return await revision.executor.execute(run, mark_started, watch=watch, surroundings=surroundings)

    def _made(self, bundle: Bundle, ref: str | None) -> Revision:
        return self._workshop.revision(bundle, ref, steps_now=lambda: self._active.steps)

    def _ref_of_step(self, call: ToolCall) -> str | None:
        """Return the revision of the Step that a call names; whoever admits it says what is wrong with it."""
        if call.step_id is None or self._active.ref is None:
            return None
        try:
            return self._active.steps.require(call).record.bundle_ref
        except GoondanError:
            return None
