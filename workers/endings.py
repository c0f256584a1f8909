"""The one end of a run: its value, a middleware's answer or an exception becomes the ToolCallResult (003 §8).

Secrets are masked, a large output becomes a file, and an error is described once.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import structlog

from broker_config import serializer
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.calls import Run, with_meta
from goondan_tasks.contract.errors import GoondanError, HandoffError, MiddlewareError, ToolError
from goondan_tasks.contract.events import handling_agent, is_event
from goondan_tasks.contract.failure import describe, traceback_text
from goondan_tasks.contract.messages import JsonObject, ToolCallError, ToolCallResult
from goondan_tasks.contract.output import Pending, bad_output, encoded_output, pending_of
from workers.instances.outputs import Outputs
from workers.results import Suspension, limited, without_secrets
from workers.tools.dynamic_tools import turn_of
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard

logger = structlog.get_logger(__name__)


@dataclass(eq=False, frozen=True, slots=True)
class Endings:
    """Makes the results of one worker's runs."""

    registry: Registry
    guard: CatalogGuard
    outputs: Outputs
    suspension: Suspension
    help_url: str

    def of_value(self, run: Run, value: Any, started_at: float | None) -> ToolCallResult:
        """Return the result of a value: final, or pending if the value says so."""
        pending = pending_of(value)
        if pending is None:
            return run.ok(value, started_at)
        return self.suspension.result(run, pending, started_at)

    def of_middleware(
        self, run: Run, answer: Any, message_limit: int, started_at: float | None
    ) -> ToolCallResult:
        """Return the result of a middleware's answer, which is a result or any other JSON.

        A pending one gets an expiry if it has none.

        Raises:
            ValueError: the answer is neither.
        """
        if not isinstance(answer, ToolCallResult):
            return self.of_value(run, _require_json(answer), started_at)
        adopted = limited(run.adopted(answer, started_at), message_limit)
        if adopted.status == "pending" and adopted.meta.expires_at is None:
            return self.of_value(run, Pending(adopted.handle or "", adopted.output), started_at)
        return adopted

    def of_error(
        self, run: Run, cause: BaseException, message_limit: int, started_at: float | None
    ) -> ToolCallResult:
        """Return the result of an exception, and log its traceback if it is not an error of ours."""
        default = HandoffError if is_event(run.call) else ToolError
        described = self.described(cause, message_limit, default)
        log_raised(run.log_fields, described)
        return run.failed(described, started_at)

    def described(
        self, cause: BaseException, message_limit: int, default: type[GoondanError] = ToolError
    ) -> ToolCallError:
        """Describe an exception for a result, with its traceback if it is not an error of ours."""
        described = describe(cause, help_url=self.help_url, message_limit=message_limit, default=default)
        is_ours = isinstance(cause, GoondanError | asyncio.CancelledError)
        if is_ours and not (isinstance(cause, MiddlewareError) and cause.__cause__ is not None):
            return described  # it may have the traceback of another process
        return described.with_traceback(traceback_text(cause))

    async def storable(self, run: Run, result: ToolCallResult, bound: BoundTool) -> ToolCallResult:
        """Return a result as it is stored; off the event loop this may block, and does not suspend.

        Raises:
            GoondanError: its output is no JSON value, or cannot be written.
        """
        if result.output is None:
            return without_secrets(result)
        author = handling_agent(run.call) or bound.name
        data, output = encoded_output(result.output, author)
        if output is not result.output:
            result = result.model_copy(update={"output": output})
        shown = without_secrets(result)
        if shown is not result:
            result, data = shown, encoded_output(shown.output, author).data
        if len(data) <= self.outputs.max_bytes:
            return result
        stored = await self.outputs.store(run, data)
        return with_meta(result.model_copy(update={"output": stored.to_wire()}), output_file=stored.path)

    def untold(self, run: Run) -> Collection[str]:
        """Return which tools the run's Turn has lost without other workers knowing."""
        return self.registry.dynamic.untold(run.call.agent_name, turn_of(run.call))

    def tell(self, run: Run, names: Collection[str]) -> None:
        """Tell other workers of tools that the Turn has lost; if that fails, the result is still valid."""
        try:
            self.guard.note_unregistered(run.call, names)
        except GoondanError as error:
            logger.warning("tools.unregistered_here_only", **run.log_fields, reason=error.message)


def log_raised(log_fields: JsonObject, error: ToolCallError) -> None:
    """Log the traceback of a call's error, if it has one."""
    if error.traceback is not None:
        logger.warning("call.raised", **log_fields, exception=error.traceback)


def _require_json(answer: Any) -> Any:
    try:
        serializer.encode(answer, serializer.DEEPEST, repairs=True)
    except serializer.NotJsonError as error:
        raise ValueError(bad_output(answer, error, "it").message.removesuffix(".")) from error
    return answer
