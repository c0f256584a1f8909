"""Functions that change a context one after another."""

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import Middleware
from goondan_tasks.contract.errors import MiddlewareError, ToolError
from workers.concurrency.event_loop import drive
from workers.v1.chains import Mutator, mutate


@dataclass
class Context:
    """What the functions of these tests change."""

    value: str


def chain(*functions: Middleware) -> list[Mutator]:
    return [Mutator(f"ext.{function.__name__}", function, "ext") for function in functions]


def adding(letter: str) -> Middleware:
    def add(ctx: Context) -> Context:
        return replace(ctx, value=ctx.value + letter)

    return add


def in_place(ctx: Context) -> None:
    ctx.value += "!"


async def awaiting(ctx: Context) -> Context:
    await asyncio.sleep(0)
    return Context(ctx.value + "~")


def failing(ctx: Context) -> None:
    raise KeyError("channel")


def refusing(ctx: Context) -> None:
    raise ToolError("not today", code="E_CLOSED")


def test_each_function_gets_result_of_function_before() -> None:
    functions = chain(adding("a"), in_place, awaiting, adding("b"))
    assert asyncio.run(mutate(functions, Context(""))) == Context("a!~b")


def test_plain_ones_stay_on_thread_of_call() -> None:
    seen: list[threading.Thread] = []
    functions = chain(lambda ctx: seen.append(threading.current_thread()), in_place)

    assert drive(mutate(functions, Context(""))) == (Context("!"),)
    assert seen == [threading.current_thread()]


def test_plain_functions_run_beside_event_loop() -> None:
    seen: list[threading.Thread] = []
    functions = chain(lambda ctx: seen.append(threading.current_thread()))

    asyncio.run(mutate(functions, Context("")))
    assert seen != [threading.current_thread()]


def test_raising_function_ends_chain_and_is_named() -> None:
    context = Context("")
    with pytest.raises(MiddlewareError, match=r"Middleware ext\.failing raised KeyError: 'channel'"):
        asyncio.run(mutate(chain(failing, in_place), context))
    assert context.value == ""


def test_error_with_own_code_stays_unchanged() -> None:
    with pytest.raises(ToolError, match="not today") as caught:
        asyncio.run(mutate(chain(refusing), Context("")))
    assert caught.value.code == "E_CLOSED"


@pytest.mark.parametrize("answer", [{"value": "a"}, "a", 0, []])
def test_non_context_return_is_refused_naming_function(answer: Any) -> None:
    def wrong(ctx: Context) -> Any:
        return answer

    with pytest.raises(MiddlewareError, match=r"ext\.wrong returned no ctx"):
        asyncio.run(mutate(chain(wrong), Context("")))


def test_rejected_change_is_reported_with_its_function() -> None:
    def accept(context: Context, mutator: Mutator) -> None:
        if "!" in context.value:
            raise ValueError("no shouting")

    functions = chain(adding("a"), in_place, adding("b"))
    with pytest.raises(MiddlewareError, match=r"ext\.in_place raised ValueError: no shouting"):
        asyncio.run(mutate(functions, Context(""), accept=accept))
