"""What the pool uses of the worker process (:class:`workers.runtime.WorkerRuntime`)."""

from collections.abc import Callable, Iterable
from typing import Protocol

from broker_config.settings import Settings
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.fleet.agent_registry import ShutdownRequests
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.reaper import Reaper
from workers.cancellation import Watch
from workers.concurrency.event_loop import EventLoopThread
from workers.delivery.delivery import Delivery
from workers.delivery.limiter import CallLimiter
from workers.job import Job
from workers.plan import Plan


class Plans(Protocol):
    """How the calls of a revision are run: :class:`workers.plans.Plans`."""

    def of(self, job: Job) -> Plan | None:
        """Return how a call that has been classified is run; ``None`` if it has to be prepared."""

    def is_slow(self, job: Job) -> bool:
        """Return whether the handler of a call's tool is likely to keep short calls waiting."""

    def learn_steps(self, jobs: Iterable[Job]) -> None:
        """Read the catalogs of the Steps of claimed calls, in one trip."""


class CallExecutor(Protocol):
    """Prepares the calls of a revision: :class:`workers.executor.Executor`."""

    @property
    def plans(self) -> Plans: ...

    def prepare(self, job: Job, watch: Watch, mark: Callable[[Job], None]) -> ToolCallResult | None:
        """Plan a call and mark it as started, or return its result; this may block."""

    def early_result(self, job: Job, plan: Plan) -> ToolCallResult | None:
        """Return the result of a call whose handler must not begin, if that is known without blocking."""


class LoadedRevision(Protocol):
    """A revision of the bundle: :class:`workers.revisions.revision.Revision`."""

    @property
    def executor(self) -> CallExecutor: ...


class LoadedRevisions(Protocol):
    """The revisions that the process has loaded: :class:`workers.revisions.revisions.Revisions`."""

    @property
    def active(self) -> LoadedRevision: ...

    def loaded(self, job: Job) -> LoadedRevision | None:
        """Return the revision of a claimed call if that is the active one; it stays open for the call."""

    def opened(self, job: Job) -> LoadedRevision:
        """Return the revision of a claimed call, loading it if necessary; this blocks."""


class Standby(Protocol):
    """Leaves calls to other workers: :class:`workers.revisions.sync.Standby`."""

    def leaves(self, call: ToolCall, error: GoondanError) -> bool:
        """Return whether other workers should run a call, because its revision cannot be loaded here."""


class WorkerParts(Protocol):
    """The parts of the process that the pool uses."""

    @property
    def settings(self) -> Settings: ...
    @property
    def revisions(self) -> LoadedRevisions: ...
    @property
    def delivery(self) -> Delivery: ...
    @property
    def limiter(self) -> CallLimiter: ...
    @property
    def reaper(self) -> Reaper: ...
    @property
    def event_loop(self) -> EventLoopThread: ...
    @property
    def monitors(self) -> Monitors: ...
    @property
    def shutdowns(self) -> ShutdownRequests: ...
    @property
    def standby(self) -> Standby: ...
