"""What a client can do about tool calls."""

from collections.abc import Iterable, Mapping
from typing import Any, Unpack

from goondan_tasks.calls import CallFields, Draft, draft_call
from goondan_tasks.client.call_output import CallOutput, OutputPart
from goondan_tasks.client.connection import Connection
from goondan_tasks.client.pending_call import PendingCall, require_possible
from goondan_tasks.errors import (
    NoOutputError,
    WaitTimeout,
)
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.wording import require_keywords


class CallMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about tool calls."""

    def submit(self, agent: str, tool: str, args: Any = None, **fields: Unpack[CallFields]) -> PendingCall:
        """Queue a call and return at once. The same identity again is the same call.

        Raises:
            AgentNotFoundError: no such agent.
            PayloadTooLargeError: the arguments exceed ``MAX_ARGS_BYTES``.
            ToolCallConflictError: the identity was submitted with other arguments.
            BrokerUnreachableError: Redis or the broker cannot be reached, or refuses the call.
            TypeError: a field that calls do not have.
        """
        require_keywords("submit()", fields, CallFields.__annotations__)
        wire = {**fields, "agentName": agent, "toolName": tool, "args": args}
        return self._submit([draft_call(wire)])[0]

    def submit_many(self, calls: Iterable[ToolCall | Mapping[str, Any]]) -> list[PendingCall]:
        """Queue many calls in one trip; dicts of wire fields are completed as by :meth:`submit`.

        Raises:
            TypeError: one of them is neither; none is queued.
        """
        return self._submit([_draft(call) for call in calls])

    def call(
        self,
        agent: str,
        tool: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        **fields: Unpack[CallFields],
    ) -> ToolCallResult:
        """Submit, and wait ``timeout`` seconds for the result; raises as both do."""
        return self.submit(agent, tool, args, **fields).result(timeout)

    def pending(self, call_id: str) -> PendingCall:
        """Return a call that was submitted before, here or elsewhere.

        Raises:
            CallNotFoundError: unknown, expired, or of a version that this one cannot read.
            BrokerUnreachableError: Redis cannot be reached.
        """
        require_possible(call_id)
        [call] = self._calls.pending([call_id])
        call.status()
        return call

    def output(self, call_id: str) -> CallOutput:
        """Return the output of a call that ended well, to be read in parts with a waiting of one's own.

        Raises:
            NoOutputError: it has not ended yet, or not well.
            CallNotFoundError, BrokerUnreachableError: as :meth:`pending`.
        """
        pending = self.pending(call_id)
        try:
            return CallOutput(pending.result(0), submit=self.submit, forget=self._forget)
        except WaitTimeout as error:
            raise NoOutputError(f"Call {call_id} has no output yet: it is {pending.status()}.") from error

    def read_output(
        self, call_id: str, offset: int = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> OutputPart:
        """Read a part of a call's output, which is JSON text in UTF-8; ``next_offset`` leads to the next.

        A large output stands in a file of the workdir, and a worker of the call's agent is asked for the
        part; it decides how much of ``limit`` bytes it sends at once.

        Raises:
            NoOutputError, CallNotFoundError, BrokerUnreachableError: as :meth:`output`.
            ToolInputValidationError: ``offset`` is past the end.
            OutputGoneError: the file is not there any more.
            WaitTimeout: no worker has answered within ``timeout`` seconds.
        """
        output = self.output(call_id)
        return output.read(offset, limit, wait=lambda asked: asked.result(timeout))

    def cancel(self, call_id: str) -> None:
        """Cancel a call, submitted here or elsewhere; see :meth:`PendingCall.cancel`.

        Raises:
            CallClosedError: it has its final result already.
            CallNotFoundError: as :meth:`pending`.
            BrokerUnreachableError: Redis cannot be reached.
        """
        self._calls.cancel(call_id)

    def calls(self, agent: str | None = None, limit: int = 50) -> list[CallRecord]:
        """Return the most recent calls, of one agent or of all, the newest first.

        What this version cannot read is left out, and logged.
        """
        with self._broker_errors():
            return self._ledger.recent(self._agents_of(agent), limit)

    def _forget(self, call_id: str, agent: str) -> None:
        with self._broker_errors():
            self._ledger.forget(call_id, agent)


def _draft(call: ToolCall | Mapping[str, Any]) -> Draft:
    if isinstance(call, ToolCall):
        return Draft(call)
    if isinstance(call, Mapping):
        return draft_call(call)
    raise TypeError(f"submit_many() takes a list of ToolCalls or dicts, not of {type(call).__name__}")
