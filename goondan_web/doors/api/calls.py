"""Calls of tools: submit one, wait for it, read its output, end it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from starlette.responses import Response

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    NoOutputError,
    OutputGoneError,
    PayloadTooLargeError,
    ToolInputValidationError,
    ToolOutputError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import LONGEST_RUN_SECONDS
from goondan_web.answers import JSON
from goondan_web.callers import caller_of
from goondan_web.doors.api.events import event_stream
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.outputs import RANGE, RangeError, output_answer
from goondan_web.doors.api.runs import CallView, Waits
from goondan_web.doors.api.turns import CALLING, beginning, request_key
from goondan_web.doors.api.wire import Begun, Sent, Waiting


class CallBody(Begun):
    """One call of a tool."""

    passed_alone = frozenset({"tool", "args"})

    tool: str = Field(min_length=1, description="The full name, such as `bash__exec`.")
    args: Any = Field(default_factory=dict, description="What the tool's schema asks for.")
    timeout_seconds: float | None = Field(
        None, gt=0, le=LONGEST_RUN_SECONDS, description="Limits the run of the tool."
    )
    idempotency_key: str | None = Field(
        None, description="Calls of the tool with the same key share one result, also across users."
    )


class Resolution(Sent):
    """The output of a pending call."""

    output: Any = None


class FailureText(Sent):
    """Why a pending call failed."""

    message: str = Field(min_length=1)
    code: str | None = None
    suggestion: str | None = None


class Failure(Sent):
    """The error of a pending call."""

    error: FailureText


_SHOWN = {200: Content("The call, as it is now.", CallView)}


@dataclass(frozen=True, slots=True)
class Calls:
    """The operations on calls."""

    client: AsyncClient
    waits: Waits

    async def submit_call(self, asked: Asked) -> Reply:
        """Call a tool of an agent."""
        body: CallBody = asked.body
        fields = body.fields(caller_of(asked.request.scope))
        call = await self.client.start_call(
            asked.path["agent"], body.tool, body.args, request_key=request_key(asked), **fields
        )
        return await self.waits.begun(call, asked, CallView.of)

    async def get_call(self, asked: Asked) -> Reply:
        """Show a call, or wait for its end."""
        query: Waiting = asked.query
        return Reply(CallView.of(await self.waits.record(asked.path["id"], query.wait)))

    async def follow_call(self, asked: Asked) -> Response:
        """Follow the events of a call that was submitted with `keep`."""
        await self.client.record(asked.path["id"])
        return await event_stream(self.client, self.waits, asked)

    async def cancel_call(self, asked: Asked) -> Reply:
        """Cancel a call."""
        await self.client.cancel(asked.path["id"])
        return await self._shown(asked)

    async def resolve_call(self, asked: Asked) -> Reply:
        """Complete a pending call with its output."""
        body: Resolution = asked.body
        await self.client.resolve(asked.path["id"], body.output)
        return await self._shown(asked)

    async def fail_call(self, asked: Asked) -> Reply:
        """Complete a pending call with an error."""
        body: Failure = asked.body
        await self.client.fail(asked.path["id"], body.error.model_dump(exclude_none=True))
        return await self._shown(asked)

    async def read_output(self, asked: Asked) -> Any:
        """Read the output of a call as JSON text, whole or a range of its bytes."""
        return await output_answer(self.client, asked.path["id"], asked.request.headers)

    async def _shown(self, asked: Asked) -> Reply:
        return Reply(CallView.of(await self.client.record(asked.path["id"])))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        return [
            *beginning("calls", CallBody, _SHOWN[200], self.submit_call, self.get_call, self.follow_call),
            Operation(
                "GET",
                "/v1/calls/{id}/output",
                "calls",
                "read",
                self.read_output,
                {
                    200: Content(
                        "The whole output.", None, JSON, {"ETag": "Names the output, which never changes."}
                    ),
                    206: Content(
                        "The range.", None, JSON, {"Content-Range": "Which bytes these are, and of how many."}
                    ),
                },
                (CallNotFoundError, NoOutputError, OutputGoneError, RangeError, WaitTimeout),
                headers=RANGE,
                is_for_askers=True,
            ),
            *self._endings(),
        ]

    def _endings(self) -> Sequence[Operation]:
        ending = (CallNotFoundError, CallClosedError, CallNotPendingError)
        return [
            Operation(
                "POST",
                "/v1/calls/{id}/cancel",
                "calls",
                CALLING,
                self.cancel_call,
                _SHOWN,
                ending,
                is_for_askers=True,
            ),
            Operation(
                "POST",
                "/v1/calls/{id}/resolve",
                "calls",
                CALLING,
                self.resolve_call,
                _SHOWN,
                (*ending, ToolOutputError, PayloadTooLargeError),
                body=Resolution,
                is_for_askers=True,
            ),
            Operation(
                "POST",
                "/v1/calls/{id}/fail",
                "calls",
                CALLING,
                self.fail_call,
                _SHOWN,
                (*ending, ToolInputValidationError),
                body=Failure,
                is_for_askers=True,
            ),
        ]
