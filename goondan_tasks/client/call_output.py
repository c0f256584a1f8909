"""The output of a call that succeeded, in its result or in a file of the workdir.

Only workers of the call's agent can read such a file, so a call of a system tool reads it, part by part. An
output is read as JSON text in UTF-8, just as a result carries it.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.calls import draft_call
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.errors import NoOutputError, OutputGoneError, ToolError, ToolInputValidationError
from goondan_tasks.messages import ToolCallError, ToolCallResult
from goondan_tasks.names import READ_OUTPUT_TOOL

#: waits for the call that brings a part
Wait = Callable[[PendingCall], ToolCallResult]


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of an output: its bytes, where they begin, and how many the whole output has."""

    data: bytes
    offset: int
    size: int

    @property
    def next_offset(self) -> int | None:
        """Where the next part begins; ``None`` after the last one."""
        end = self.offset + len(self.data)
        return end if end < self.size else None


class CallOutput:
    """One call's output, to be read in parts."""

    def __init__(self, result: ToolCallResult, connection: ClientConnection) -> None:
        """Take the call's result; parts that it does not hold are read by calls over ``connection``.

        Raises:
            NoOutputError: the call did not end well.
        """
        if result.status != "ok":
            how = "is pending" if result.error is None else f"ended with an error, {result.error.code}"
            raise NoOutputError(f"Call {result.meta.id} has no output: it {how}.")
        self.result = result
        self._connection = connection

    def ask(self, offset: int = 0, limit: int | None = None) -> OutputPart | PendingCall:
        """Return a part of at most ``limit`` bytes, or the call whose result brings it (:meth:`take`).

        Raises:
            ToolInputValidationError: the offset or the limit is out of range.
            AgentNotFoundError, BrokerUnreachableError: no worker can be asked.
        """
        if offset < 0 or (limit is not None and limit < 1):
            raise ToolInputValidationError("An output is read from offset 0 on, and 1 byte at least.")
        meta = self.result.meta
        if meta.output_file is None:
            return self._own_part(offset, limit)
        args = {"path": meta.output_file, "offset": offset}
        draft = draft_call(
            {
                "agentName": meta.agent_name,
                "instanceKey": meta.instance_key,
                "toolName": READ_OUTPUT_TOOL,
                "args": args if limit is None else {**args, "limit": limit},
            }
        )
        return self._connection.submit_drafts([draft])[0]

    def take(self, offset: int, asked: PendingCall, answer: ToolCallResult) -> OutputPart:
        """Read the part from its call's result, and delete that: it is as large as a result may be.

        Raises:
            OutputGoneError: the file does not exist any more.
            ToolInputValidationError: ``offset`` is past its end.
            ToolError: the call failed; its code says how.
        """
        self._connection.forget(asked.id, self.result.meta.agent_name)
        if answer.error is not None:
            raise _raised(answer.error)
        return OutputPart(base64.b64decode(answer.output["data"]), offset, answer.output["size"])

    def read(
        self, offset: int = 0, limit: int | None = None, *, wait: Wait = PendingCall.result
    ) -> OutputPart:
        """Return a part; ``wait`` waits for the call that brings it, if one is needed."""
        asked = self.ask(offset, limit)
        return asked if isinstance(asked, OutputPart) else self.take(offset, asked, wait(asked))

    def parts(self, offset: int = 0, *, wait: Wait = PendingCall.result) -> Iterator[OutputPart]:
        """Yield the parts from ``offset`` to the end, each when the one before has been used."""
        following: int | None = offset
        while following is not None:
            part = self.read(following, wait=wait)
            yield part
            following = part.next_offset

    def _own_part(self, offset: int, limit: int | None) -> OutputPart:
        data = serializer.encode(self.result.output)
        if offset > len(data):
            raise ToolInputValidationError(
                f"Offset {offset} is past the end: the output has {len(data)} bytes."
            )
        end = len(data) if limit is None else offset + limit
        return OutputPart(data[offset:end], offset, len(data))


def _raised(error: ToolCallError) -> ToolError:
    kinds = {kind.code: kind for kind in (OutputGoneError, ToolInputValidationError)}
    return kinds.get(error.code, ToolError)(error.message, code=error.code, suggestion=error.suggestion)
