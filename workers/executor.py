"""The executor: one call through five steps to its one result. It never raises.

1. guard: is the tool in the Step's catalog (003 §7)? It fails closed, before any middleware.
2. pipeline: the ``toolCall`` middlewares, an onion around the rest (003 §6).
3. arguments: checked against the tool's JSON Schema, after middlewares may have changed them.
4. handler: ``handler(ctx, input)``, in the instance's workdir.
5. outcome: the value, or what was raised, becomes the ToolCallResult (003 §8); a large one, a file.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from goondan_tasks.agents.handling import is_event
from goondan_tasks.bundle import BoundTool
from goondan_tasks.errors import (
    GoondanError,
    HandoffError,
    ToolError,
    ToolInputValidationError,
)
from goondan_tasks.extension_api import ToolCallContext
from goondan_tasks.failure import DEFAULT_MESSAGE_LIMIT, describe
from goondan_tasks.messages import JsonObject, ToolCallResult
from goondan_tasks.output import encoded_output
from goondan_tasks.redaction import KNOWN_SECRETS
from goondan_tasks.run import Run
from workers.cancellation import Cancellation
from workers.catalog_guard import CatalogGuard
from workers.contexts import ContextFactory, Surroundings
from workers.event_loop import move_to_loop
from workers.extensions.pipelines import Pipelines
from workers.handlers import timed_out
from workers.isolation import IsolatedTool
from workers.outputs import Outputs
from workers.pipeline import compose
from workers.registered_tool import RegisteredTool
from workers.registry import Registry

logger = structlog.get_logger(__name__)

#: writes the mark "started" just before the handler and returns the time in ms
StartMark = Callable[[], float]

#: told how many seconds a sync handler may take; returns what to call when it has ended
Watch = Callable[[float], Callable[[], None]]


@dataclass(slots=True)
class _Progress:
    """How far a call has come, for the result it may have to end with at any moment."""

    message_limit: int = DEFAULT_MESSAGE_LIMIT
    started_at: float | None = None


class Executor:
    """Runs calls with one registry of tools."""

    def __init__(
        self,
        registry: Registry,
        contexts: ContextFactory,
        *,
        guard: CatalogGuard,
        pipelines: Pipelines,
        outputs: Outputs,
        help_url: str,
    ) -> None:
        self._registry = registry
        self._contexts = contexts
        self._guard = guard
        self._pipelines = pipelines
        self._outputs = outputs
        self._help_url = help_url

    async def execute(
        self,
        run: Run,
        mark_started: StartMark,
        *,
        watch: Watch,
        surroundings: Surroundings,
    ) -> ToolCallResult:
        """Run the call; whatever happens becomes its result.

        An async handler is cancelled at its limit, and with its call. A sync one cannot be: ``watch``
        sees to its limit, and whoever cancels it answers in its place.
        """
        progress, cancellation = _Progress(), surroundings.cancellation
        is_handling = is_event(run.call)

        async def core(context: ToolCallContext) -> Any:
            tool = self._registry.tool(run.call.agent_name, run.call.tool_name)
            arguments = _checked(tool, context.args)
            limit = self._contexts.limit_seconds(run, tool.bound)
            progress.started_at = mark_started()
            # the limit counts from here
            tool_context = self._contexts.make(run, limit, surroundings, is_async=tool.is_async)
            if isinstance(tool.handler, IsolatedTool):
                return tool.handler.run(
                    tool_context, arguments, limit_seconds=limit, cancellation=cancellation
                )
            late = timed_out(limit, is_event=is_handling)
            if tool.is_async:
                return await _awaited(tool.handler(tool_context, arguments), limit, late, cancellation)
            call_off = watch(limit)
            try:
                value = tool.handler(tool_context, arguments)
            finally:
                call_off()
            return await _awaited(value, limit, late, cancellation) if inspect.isawaitable(value) else value

        try:
            bound = self._guard.admit(run.call)
            progress.message_limit = bound.tool.spec.error_message_limit
            layers = () if is_handling else self._pipelines.layers(run.call.agent_name, "toolCall")
            output = await compose(layers, core)(_tool_call_context(run))
            return await self._ok(run, output, bound, started_at=progress.started_at)
        except BaseException as error:  # noqa: BLE001 - the one boundary: even sys.exit is a result
            return self._failed(run, cancellation.error or error, progress)
        finally:
            surroundings.reporter.flush()

    def _failed(self, run: Run, cause: BaseException, progress: _Progress) -> ToolCallResult:
        if not isinstance(cause, GoondanError | asyncio.CancelledError):
            logger.warning("call.raised", call_id=run.id, tool=run.call.tool_name, exc_info=cause)
        described = describe(
            cause,
            help_url=self._help_url,
            message_limit=progress.message_limit,
            default=HandoffError if is_event(run.call) else ToolError,
        )
        return run.failed(described, progress.started_at)

    async def _ok(
        self, run: Run, output: Any, bound: BoundTool, *, started_at: float | None
    ) -> ToolCallResult:
        data = encoded_output(output, bound.name)
        hidden = KNOWN_SECRETS.hidden_in_answer(output)
        if hidden != output:
            output, data = hidden, encoded_output(hidden, bound.name)
        if len(data) <= self._outputs.max_bytes:
            return run.ok(output, started_at)
        stored = await self._outputs.store(run, data)
        return run.ok(stored.to_wire(), started_at, output_file=stored.path)


def _tool_call_context(run: Run) -> ToolCallContext:
    call = run.call
    return ToolCallContext(
        call.tool_name,
        call.tool_call_id,
        call.args,
        call.agent_name,
        call.instance_key,
        call.turn_id,
        call.trace_id,
        call.step_id,
        call.message,
    )


def _checked(tool: RegisteredTool, arguments: JsonObject) -> JsonObject:
    faults = tool.arguments.faults(arguments)
    if faults:
        raise ToolInputValidationError("; ".join(faults))
    return arguments


async def _awaited(
    value: Awaitable[Any], limit: float, late: GoondanError, cancellation: Cancellation
) -> Any:
    await move_to_loop()
    _cancel_with(cancellation)
    try:
        async with asyncio.timeout(limit) as timer:
            return await value
    except TimeoutError as error:
        if timer.expired():
            raise late from error
        raise


def _cancel_with(cancellation: Cancellation) -> None:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is not None:
        cancellation.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
