"""Tools with ``isolation: process``: the worker's side of a call that runs in a child process."""

import contextlib
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle import BoundTool
from goondan_tasks.errors import ToolError
from goondan_tasks.failure import DescribedError
from goondan_tasks.messages import JsonObject, ToolCallError
from goondan_tasks.pending import Pending
from goondan_tasks.tool_api import ToolContext
from workers.cancellation import Cancellation
from workers.processes.children import ChildKind, Children


@dataclass(frozen=True, slots=True)
class IsolatedTool:
    """A tool whose handler runs in a child process, which its limit and a cancel really end."""

    bound: BoundTool
    children: Children
    help_url: str

    def run(
        self, ctx: ToolContext, args: JsonObject, *, limit_seconds: float, cancellation: Cancellation
    ) -> Any:
        """Run the handler and return what it returned; blocks.

        Afterwards the handler has ended, and unless it ended by itself so has everything it started.

        Raises:
            ToolTimeoutError: it is past its limit.
            ToolCrashedError: its process ended before it did.
            ToolError: the call was cancelled; or :class:`DescribedError`, what the handler raised.
            OSError: no process can be started.
        """

        def on_event(kind: str, body: Any) -> None:
            if kind == "log":
                level, event, fields = body
                getattr(ctx.logger, level)(event, **fields)
            elif kind == "progress":
                ctx.progress(**body)

        export = self.bound.export
        with self.children.lend(ChildKind(self.bound.entry_path, export.memory_mb)) as child:
            forget = cancellation.on_cancel(child.stop)
            try:
                kind, body = child.run(self._order(ctx, args, limit_seconds), limit_seconds, on_event)
            finally:
                forget()
            if cancellation.error is not None:
                raise cancellation.error  # its child is on its way out, too late for the handler
        if kind == "error":
            raise DescribedError(ToolCallError.from_wire(body))
        return Pending(**body) if kind == "pending" else body

    def _order(self, ctx: ToolContext, args: JsonObject, limit_seconds: float) -> JsonObject:
        return {
            "tool": self.bound.name,
            "export": self.bound.export.name,
            "args": args,
            "limitSeconds": limit_seconds,
            "messageLimit": self.bound.tool.spec.error_message_limit,
            "helpUrl": self.help_url,
            "context": {
                "agentName": ctx.agent_name,
                "instanceKey": ctx.instance_key,
                "turnId": ctx.turn_id,
                "traceId": ctx.trace_id,
                "toolCallId": ctx.tool_call_id,
                "message": ctx.message.to_wire(),
                "workdir": str(ctx.workdir),
                "callbackUrl": _callback_of(ctx),
            },
        }


def _callback_of(ctx: ToolContext) -> str | None:
    with contextlib.suppress(ToolError):  # there is none
        return ctx.callback_url
    return None


@dataclass(frozen=True, slots=True)
class Isolation:
    """What all isolated tools of a process share."""

    children: Children
    #: where the pages of our own errors are
    help_url: str

    def tool(self, bound: BoundTool) -> IsolatedTool:
        """Return the tool, to be run in a child."""
        return IsolatedTool(bound, self.children, self.help_url)
