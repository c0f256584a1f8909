"""Tools ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker_config.scripts import ScriptCall
from goondan_tasks.authoring.entry import takes
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.bundle import BoundTool
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import ArgumentSchema, compile_schema
from workers.handlers import is_async_handler
from workers.processes.isolation import IsolatedTool


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """A handler with its declaration; it is called with a context and the arguments."""

    bound: BoundTool
    handler: Callable[[Any, JsonObject], Any] | IsolatedTool
    arguments: ArgumentSchema
    is_async: bool
    #: whether the handler, an async one, only waits, and so needs no slot
    only_waits: bool = False
    #: returns what its calls read in the trip of their marks, given the job, which gets the answer
    reads: Callable[[Any], ScriptCall[Any] | None] | None = None
    #: the limit of the tokens that its calls use (:func:`goondan_tasks.ledger.limiter.token_limit`)
    tokens: str | None = None


def ready(bound: BoundTool, handler: ToolHandler) -> RegisteredTool:
    """Return a tool with its handler.

    Raises:
        ValueError: its parameters are not a JSON Schema.
        TypeError: ``handler`` is not a function of ``(ctx, input)``.
    """
    if not callable(handler):
        raise TypeError(f"the handler of {bound.name} must be a function, not {type(handler).__name__}")
    if not takes(handler, 2):
        raise TypeError(f"the handler of {bound.name} cannot be called with (ctx, input)")
    arguments = compile_schema(bound.export.parameters)
    return RegisteredTool(bound, handler, arguments, is_async_handler(handler))
