"""The onion of middlewares."""

import asyncio
import threading
from dataclasses import fields
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import Middleware, StepContext, ToolCallContext, TurnContext
from goondan_tasks.contract.errors import MiddlewareError, ToolError
from workers.concurrency.event_loop import drive
from workers.handlers import awaits_next_alone
from workers.turns.pipeline import Core, Layer, compose


def run(*middlewares: Middleware, core: Core[ToolCallContext] | None = None) -> Any:
    layers = [Layer(f"ext.{number}", middleware) for number, middleware in enumerate(middlewares)]

    async def call() -> Any:
        return await compose(layers, core or the_core)(ToolCallContext("a__b", "call_1", {"n": 1}))

    return asyncio.run(call())


async def the_core(ctx: ToolCallContext) -> Any:
    return ctx.args


def recording(name: str, steps: list[str]) -> Middleware:
    async def middleware(ctx: ToolCallContext) -> Any:
        steps.append(f"{name} in")
        value = await ctx.next()
        steps.append(f"{name} out")
        return value

    return middleware


TURN: Any = {"agent_name": "a", "instance_key": "i", "turn_id": "t", "trace_id": "0"}
EVENT: Any = None
CONTEXTS = [
    (ToolCallContext("a__b", "c", {}), "ctx.args, ctx.metadata"),
    (
        StepContext(**TURN, step_id="s", step_index=0, tool_catalog=[]),
        "ctx.tool_catalog, ctx.blocks, ctx.metadata",
    ),
    (TurnContext(**TURN, event=EVENT), "ctx.metadata"),
]


@pytest.mark.parametrize(("context", "changeable"), CONTEXTS)
def test_only_fields_saying_what_runs_refuse_setting(context: Any, changeable: str) -> None:
    ahead, names = context.layer(the_core), {field.name for field in fields(context)}
    may_change = set(changeable.replace("ctx.", "").split(", "))
    for name in names - may_change:
        with pytest.raises(AttributeError, match=rf"^ctx\.{name} is read-only; .* may change: {changeable}$"):
            setattr(ahead, name, "another")
    for name in names:
        with pytest.raises(AttributeError, match="cannot be deleted"):
            delattr(ahead, name)
    for name in may_change:
        setattr(ahead, name, ["another"])
        assert getattr(context, name) == ["another"]


def test_setting_read_only_field_fails_naming_field() -> None:
    def renames(ctx: ToolCallContext) -> Any:
        ctx.tool_name = "c__d"
        return ctx.next()

    with pytest.raises(MiddlewareError, match=r"ext\.0 raised AttributeError: ctx\.tool_name is read-only"):
        run(renames)


def test_without_middlewares_core_stands_alone() -> None:
    assert run() == {"n": 1}


def test_first_middleware_is_outermost() -> None:
    steps: list[str] = []
    run(recording("one", steps), recording("two", steps))
    assert steps == ["one in", "two in", "two out", "one out"]


def test_replaced_attribute_reaches_core_and_those_outside() -> None:
    seen = []

    async def outer(ctx: ToolCallContext) -> Any:
        value = await ctx.next()
        seen.append((ctx.args, ctx.metadata))
        return value

    async def inner(ctx: ToolCallContext) -> Any:
        ctx.args = {"n": 2}
        ctx.metadata = {"changed": True}
        return await ctx.next()

    assert run(outer, inner) == {"n": 2}
    assert seen == [({"n": 2}, {"changed": True})]


def test_middleware_may_answer_without_core() -> None:
    async def answering(ctx: ToolCallContext) -> Any:
        return "cached"

    assert run(answering) == "cached"


def test_plain_and_async_middlewares_mix() -> None:
    def plain(ctx: ToolCallContext) -> Any:
        ctx.args = {"n": 3}
        return ctx.next()

    steps: list[str] = []
    assert run(recording("a", steps), plain, recording("b", steps)) == {"n": 3}
    assert steps == ["a in", "b in", "b out", "a out"]


def test_next_second_time_is_refused_and_runs_nothing() -> None:
    runs = []

    async def core(ctx: ToolCallContext) -> Any:
        runs.append(1)
        return "done"

    async def greedy(ctx: ToolCallContext) -> Any:
        await ctx.next()
        return await ctx.next()

    with pytest.raises(MiddlewareError, match=r"ext\.0 called next\(\) a second time"):
        run(greedy, core=core)
    assert runs == [1]


def test_middleware_that_returns_nothing_passes_result_on() -> None:
    async def forgetful(ctx: ToolCallContext) -> None:
        await ctx.next()

    assert run(forgetful) == {"n": 1}


def test_middleware_neither_answering_nor_continuing_is_named() -> None:
    async def silent(ctx: ToolCallContext) -> None:
        return None

    with pytest.raises(MiddlewareError, match=r"ext\.0 returned nothing"):
        run(silent)


def test_error_of_middleware_names_middleware() -> None:
    async def broken(ctx: ToolCallContext) -> Any:
        raise KeyError("tenant")

    with pytest.raises(MiddlewareError, match=r"ext\.1 raised KeyError: 'tenant'"):
        run(recording("outer", []), broken)


def test_middleware_whose_task_group_fails_names_reason() -> None:
    async def refuse() -> None:
        raise ToolError("not today", code="E_TODAY")

    async def grouping(ctx: ToolCallContext) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    with pytest.raises(MiddlewareError, match=r"ext\.0 raised ExceptionGroup: .* E_TODAY: not today"):
        run(grouping)


def test_handler_error_passes_unchanged_and_is_catchable() -> None:
    async def failing(ctx: ToolCallContext) -> Any:
        raise ValueError("from the handler")

    async def catching(ctx: ToolCallContext) -> Any:
        try:
            return await ctx.next()
        except ValueError as error:
            return str(error)

    with pytest.raises(ValueError, match="from the handler"):
        run(recording("outer", []), core=failing)
    assert run(catching, core=failing) == "from the handler"


def test_error_with_own_code_passes_unchanged() -> None:
    async def refusing(ctx: ToolCallContext) -> Any:
        raise ToolError("not today", code="E_TODAY")

    with pytest.raises(ToolError, match="not today") as raised:
        run(refusing)
    assert raised.value.code == "E_TODAY"


def test_async_middleware_forgetting_await_passes_result_on() -> None:
    async def middleware(ctx: ToolCallContext) -> Any:
        return ctx.next()

    assert run(middleware) == {"n": 1}


def test_middleware_raising_system_exit_only_fails() -> None:
    def middleware(ctx: ToolCallContext) -> Any:
        raise SystemExit(3)

    with pytest.raises(MiddlewareError, match=r"ext\.0 raised SystemExit: 3"):
        run(middleware)


def test_plain_middleware_inside_async_middleware_may_block() -> None:
    threads = []

    async def outer(ctx: ToolCallContext) -> Any:
        return await ctx.next()

    def inner(ctx: ToolCallContext) -> Any:
        threads.append(threading.current_thread())
        return ctx.next()

    assert run(outer, inner) == {"n": 1}
    assert threading.main_thread() not in threads


def test_plain_middlewares_alone_keep_thread_without_loop() -> None:
    def middleware(ctx: ToolCallContext) -> Any:
        return ctx.next()

    chain = compose([Layer("ext.a", middleware), Layer("ext.b", middleware)], the_core)

    assert drive(chain(ToolCallContext("a__b", "call_1", {"n": 1}))) == ({"n": 1},)  # type: ignore[arg-type]


def test_async_middlewares_awaiting_only_next_keep_thread() -> None:
    steps: list[str] = []
    layers = [
        Layer("ext.a", awaits_next_alone(recording("a", steps))),
        Layer("ext.b", lambda ctx: ctx.next()),
    ]

    chain = compose(layers, the_core)

    assert drive(chain(ToolCallContext("a__b", "call_1", {"n": 1}))) == ({"n": 1},)  # type: ignore[arg-type]
    assert steps == ["a in", "a out"]


def test_every_answer_is_shaped_for_next_one_out() -> None:
    seen: list[Any] = []

    async def outer(ctx: ToolCallContext) -> Any:
        seen.append(await ctx.next())
        return 2

    async def inner(ctx: ToolCallContext) -> Any:
        return 1

    layers = [Layer("ext.outer", outer), Layer("ext.inner", inner)]

    async def call() -> Any:
        context = ToolCallContext("a__b", "call_1", {})
        return await compose(layers, the_core, shape=lambda answer: [answer])(context)

    assert asyncio.run(call()) == [2]
    assert seen == [[1]]
