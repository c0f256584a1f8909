"""What the pool uses of the worker process (:class:`workers.runtime.WorkerRuntime`)."""

from typing import Protocol

from broker_config.settings import Settings
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.fleet.agent_registry import ShutdownRequests
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.reaper import Reaper
from workers.call_executor import CallExecutor
from workers.concurrency.event_loop import EventLoopThread
from workers.delivery.delivery import Delivery
from workers.delivery.limiter import CallLimiter
from workers.job import Job


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


class OtherWorkers(Protocol):
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
    def standby(self) -> OtherWorkers: ...
