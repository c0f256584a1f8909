"""The onion of middlewares."""

from collections.abc import Awaitable, Callable
from typing import Any

from goondan_tasks.extension_api import ToolCallContext, ToolCallMiddleware
from workers.event_loop import drive
from workers.pipeline import compose

Next = Callable[[], Awaitable[Any]]


def run(middlewares: list[ToolCallMiddleware], core: Callable[[ToolCallContext], Awaitable[Any]]) -> Any:
    async def call() -> Any:
        return await compose(middlewares, core)(ToolCallContext("a__b", "call_1", {"n": 1}))

    ended = drive(call())
    assert ended is not None
    return ended[0]


async def the_core(context: ToolCallContext) -> Any:
    return context.args


def recording(name: str, steps: list[str]) -> ToolCallMiddleware:
    async def middleware(context: ToolCallContext, call_next: Next) -> Any:
        steps.append(f"{name} in")
        value = await call_next()
        steps.append(f"{name} out")
        return value

    return middleware


def test_without_middlewares_the_core_stands_alone() -> None:
    assert run([], the_core) == {"n": 1}


def test_the_first_middleware_is_outermost() -> None:
    steps: list[str] = []
    run([recording("one", steps), recording("two", steps)], the_core)
    assert steps == ["one in", "two in", "two out", "one out"]


def test_changed_arguments_reach_the_core() -> None:
    async def doubling(context: ToolCallContext, call_next: Next) -> Any:
        context.args = {"n": 2}
        return await call_next()

    assert run([doubling], the_core) == {"n": 2}


def test_a_middleware_may_answer_without_the_core() -> None:
    async def answering(context: ToolCallContext, call_next: Next) -> Any:
        return "cached"

    assert run([answering], the_core) == "cached"
