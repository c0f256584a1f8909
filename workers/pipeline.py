"""The onion: middlewares around a core, as one pure function (003 §6.1)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from goondan_tasks.extension_api import ToolCallContext, ToolCallMiddleware

Core = Callable[[ToolCallContext], Awaitable[Any]]


def compose(middlewares: Sequence[ToolCallMiddleware], core: Core) -> Core:
    """Wrap ``core`` in ``middlewares``, the first one outermost; all of them share the context."""
    wrapped = core
    for middleware in reversed(middlewares):
        wrapped = _around(middleware, wrapped)
    return wrapped


def _around(middleware: ToolCallMiddleware, inner: Core) -> Core:
    async def call(context: ToolCallContext) -> Any:
        return await middleware(context, lambda: inner(context))

    return call
