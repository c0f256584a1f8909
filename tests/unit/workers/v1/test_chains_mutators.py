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


def test_each_is_given_what_the_one_before_has_left() -> None:
    functions = chain(adding("a"), in_place, awaiting, adding("b"))
    assert asyncio.run(mutate(functions, Context(""))) == Context("a!~b")


def test_plain_ones_stay_on_the_thread_of_a_call() -> None:
    seen: list[threading.Thread] = []
    functions = chain(lambda ctx: seen.append(threading.current_thread()), in_place)

    assert drive(mutate(functions, Context(""))) == (Context("!"),)
    assert seen == [threading.current_thread()]


def test_on_the_event_loop_plain_ones_are_called_beside_it() -> None:
    seen: list[threading.Thread] = []
    functions = chain(lambda ctx: seen.append(threading.current_thread()))

    asyncio.run(mutate(functions, Context("")))
    assert seen != [threading.current_thread()]


def test_what_one_raises_ends_the_chain_and_names_it() -> None:
    context = Context("")
    with pytest.raises(MiddlewareError, match=r"Middleware ext\.failing raised KeyError: 'channel'"):
        asyncio.run(mutate(chain(failing, in_place), context))
    assert context.value == ""


def test_an_error_with_a_code_of_its_own_stays_as_it_is() -> None:
    with pytest.raises(ToolError, match="not today") as caught:
        asyncio.run(mutate(chain(refusing), Context("")))
    assert caught.value.code == "E_CLOSED"


@pytest.mark.parametrize("answer", [{"value": "a"}, "a", 0, []])
def test_another_thing_than_the_context_is_refused_with_the_name_of_who_returned_it(answer: Any) -> None:
    def wrong(ctx: Context) -> Any:
        return answer

    with pytest.raises(MiddlewareError, match=r"ext\.wrong returned no ctx"):
        asyncio.run(mutate(chain(wrong), Context("")))


def test_what_is_not_accepted_of_one_is_said_of_it() -> None:
    def accept(context: Context, mutator: Mutator) -> None:
        if "!" in context.value:
            raise ValueError("no shouting")

    functions = chain(adding("a"), in_place, adding("b"))
    with pytest.raises(MiddlewareError, match=r"ext\.in_place raised ValueError: no shouting"):
        asyncio.run(mutate(functions, Context(""), accept=accept))
