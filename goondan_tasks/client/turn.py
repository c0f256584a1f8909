"""A Turn whose brain is a producer: a worker opens its Steps, one after the other (DESIGN §6)."""

from dataclasses import dataclass, field

from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.step import Step
from goondan_tasks.client.turn_desk import TurnDesk
from goondan_tasks.errors import (
    CallNotFoundError,
    MiddlewareError,
    StepLimitError,
    ToolError,
    ToolInputValidationError,
)
from goondan_tasks.messages import JsonObject, ToolCallError, ToolCallResult
from goondan_tasks.names import STEP_TOOL
from goondan_tasks.steps import StepInput, TurnEntry, opening_id


@dataclass(slots=True)
class Turn:
    """One event that a producer handles; its Steps follow one another."""

    desk: TurnDesk
    _steps: list[str] = field(default_factory=list, repr=False)
    #: how often the next Step could not be opened
    _failures: int = field(default=0, repr=False)

    @property
    def id(self) -> str:
        """The ``turnId`` of its calls."""
        return self.desk.turn_id

    def step(self, message: JsonObject | None = None, *, timeout: float | None = None) -> Step:
        """Open the next Step: a worker runs its middlewares, and fixes what the model is shown.

        ``message`` is what the Step begins with, for the middlewares. ``timeout`` only waits, in seconds.
        A producer that begins the Turn once more, after it was stopped, is given the same Steps.

        Raises:
            StepLimitError: the Turn has had ``policy.maxStepsPerTurn`` Steps.
            MiddlewareError: a step middleware failed, or does not let the Step open.
            ToolError: it could not be opened for another reason; the code says which.
            WaitTimeout: no worker has opened it yet; asked again, it is the same Step.
            ToolInputValidationError: ``message`` is no object.
            AgentNotFoundError, PayloadTooLargeError, ToolCallConflictError, BrokerUnreachableError:
                as :meth:`Client.submit`.
        """
        return self.take(self.ask(message).result(timeout))

    def ask(self, message: JsonObject | None = None) -> PendingCall:
        """Ask for the next Step; return the call whose result :meth:`take` reads."""
        if message is not None and not isinstance(message, dict):
            raise ToolInputValidationError(f"A Step begins with an object, not {message!r:.200}.")
        index = len(self._steps)
        previous = self._steps[-1] if self._steps else None
        asked = StepInput(index=index, message=message, previous_step_id=previous)
        draft = self.desk.draft(STEP_TOOL, asked.to_wire(), opening_id(index, self._failures))
        [pending] = self.desk.actions.submit([draft])
        return pending

    def take(self, opened: ToolCallResult) -> Step:
        """Read the Step that has been opened; raises as :meth:`step`."""
        if opened.error is not None:
            self._failures += 1
            raise _raised(opened.error)
        step_id = opened.output["stepId"]
        with self.desk.actions.broker_errors():
            kept = self.desk.actions.store.read(step_id)
        if kept is None:
            raise CallNotFoundError(f"Step {step_id} has expired.")
        self._failures = 0
        self._steps.append(step_id)
        return Step(kept.catalog, kept.record, self.desk)

    def record(self) -> list[TurnEntry]:
        """Return what is kept of the Turn: its Steps, what each began with, and the ids of its calls.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self.desk.actions.broker_errors():
            return self.desk.actions.store.turn(self.desk.agent, self.desk.instance_key, self.id)


def _raised(error: ToolCallError) -> Exception:
    kinds = {kind.code: kind for kind in (StepLimitError, MiddlewareError)}
    return kinds.get(error.code, ToolError)(error.message, code=error.code, suggestion=error.suggestion)
