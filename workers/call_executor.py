"""What the pool asks of the executor of a revision (:mod:`workers.executor`)."""

from collections.abc import Callable, Iterable
from typing import Protocol

from goondan_tasks.contract.messages import ToolCallResult
from workers.cancellation import Watch
from workers.job import Job
from workers.plan import Plan


class CallPlans(Protocol):
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
    def plans(self) -> CallPlans: ...

    def prepare(self, job: Job, watch: Watch, mark: Callable[[Job], None]) -> ToolCallResult | None:
        """Plan a call and mark it as started, or return its result; this may block."""

    def early_result(self, job: Job, plan: Plan) -> ToolCallResult | None:
        """Return the result of a call whose handler must not begin, if that is known without blocking."""
