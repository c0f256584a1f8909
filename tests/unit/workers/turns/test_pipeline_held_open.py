"""Onions that are held open at their core, in plain code and in async code."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import Onion
from goondan_tasks.contract.errors import MiddlewareError
from tests.waiting import wait_until
from workers.concurrency.event_loop import EventLoopThread, move_to_loop
from workers.turns.pipeline import CoreOutcome, HeldOnion, Layer, blocking, compose


@pytest.fixture
def event_loop() -> Iterator[EventLoopThread]:
    event_loop = EventLoopThread()
    event_loop.start()
    yield event_loop
    event_loop.stop()


class Passage:
    """One way through layers that write down what happens."""

    def __init__(self, event_loop: EventLoopThread, *middlewares: Any) -> None:
        self.said: list[str] = []
        self.onion = HeldOnion(event_loop)
        layers = [Layer(f"ext.{one.__name__}", one) for one in middlewares]
        self.chain = compose(layers, self._core)

    async def _core(self, context: Onion[Any]) -> Any:
        self.said.append("core")
        return await self.onion.pause()

    async def run(self) -> Any:
        return await self.chain(Onion())


def passage(event_loop: EventLoopThread, *kinds: str) -> Passage:
    made: Passage

    async def waits(ctx: Any) -> Any:
        made.said.append("waits in")
        await asyncio.sleep(0)
        try:
            return await ctx.next()
        finally:
            await asyncio.sleep(0)
            made.said.append("waits out")

    def plain(ctx: Any) -> Any:
        made.said.append("plain in")
        return ctx.next()

    async def catches(ctx: Any) -> Any:
        try:
            return await ctx.next()
        except ValueError as error:
            return f"caught {error}"

    async def skips(ctx: Any) -> str:
        return "no next"

    async def fails(ctx: Any) -> Any:
        raise KeyError("lost")

    middlewares = {one.__name__: one for one in (waits, plain, catches, skips, fails)}
    made = Passage(event_loop, *(middlewares[kind] for kind in kinds))
    return made


@pytest.mark.parametrize(
    "kinds", [(), ("plain",), ("plain", "plain"), ("waits",), ("plain", "waits", "plain")]
)
def test_plain_code_holds_onion_open(event_loop: EventLoopThread, kinds: tuple[str, ...]) -> None:
    one = passage(event_loop, *kinds)
    blocking(one.onion.enter(one.run(), is_async=False))
    assert one.said == [*(f"{kind} in" for kind in kinds), "core"]
    assert blocking(one.onion.leave(CoreOutcome("result"), is_async=False)) == "result"
    assert [line for line in one.said if "out" in line] == [
        f"{kind} out" for kind in kinds if kind == "waits"
    ]


@pytest.mark.parametrize("kinds", [(), ("plain",), ("waits",), ("plain", "waits", "plain")])
def test_async_code_holds_onion_open(event_loop: EventLoopThread, kinds: tuple[str, ...]) -> None:
    one = passage(event_loop, *kinds)

    async def hold() -> Any:
        await one.onion.enter(one.run(), is_async=True)
        assert one.said == [*(f"{kind} in" for kind in kinds), "core"]
        return await one.onion.leave(CoreOutcome("result"), is_async=True)

    assert event_loop.submit(hold()).result(30) == "result"


@pytest.mark.parametrize("kinds", [(), ("plain",), ("waits",), ("plain", "waits", "plain")])
def test_onion_with_expected_outcome_runs_without_stopping(
    event_loop: EventLoopThread, kinds: tuple[str, ...]
) -> None:
    one = passage(event_loop, *kinds)
    outcome = CoreOutcome("result")
    one.onion.expect(outcome)
    blocking(one.onion.enter(one.run(), is_async=False))
    outs = [f"{kind} out" for kind in kinds if kind == "waits"]
    assert one.said == [*(f"{kind} in" for kind in kinds), "core", *outs]
    assert blocking(one.onion.leave(outcome, is_async=False)) == "result"


@pytest.mark.parametrize(("when", "has_core"), [("before", False), ("after", True)])
def test_middlewares_have_equal_time_around_expected_outcome(
    event_loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch, when: str, has_core: bool
) -> None:
    async def hangs(ctx: Any) -> Any:
        if when == "before":
            await asyncio.sleep(60)
        await ctx.next()
        await asyncio.sleep(60)

    monkeypatch.setattr("workers.turns.pipeline.MOST_SECONDS", 0.05)
    one = Passage(event_loop, hangs)
    one.onion.expect(CoreOutcome("result"))
    with pytest.raises(MiddlewareError, match=r"took longer than 0\.05 s"):
        blocking(one.onion.enter(one.run(), is_async=False))
        blocking(one.onion.leave(CoreOutcome("result"), is_async=False))
    assert one.said == ["core"] * has_core


@pytest.mark.parametrize("kinds", [("plain",), ("waits",)])
def test_error_leaves_onion_unchanged(event_loop: EventLoopThread, kinds: tuple[str, ...]) -> None:
    one, error = passage(event_loop, *kinds), ValueError("mine")
    blocking(one.onion.enter(one.run(), is_async=False))
    with pytest.raises(ValueError, match="mine") as raised:
        blocking(one.onion.leave(CoreOutcome(error=error), is_async=False))
    assert raised.value is error


def test_middleware_may_catch_error(event_loop: EventLoopThread) -> None:
    one = passage(event_loop, "catches")
    blocking(one.onion.enter(one.run(), is_async=False))
    assert blocking(one.onion.leave(CoreOutcome(error=ValueError("mine")), is_async=False)) == "caught mine"


@pytest.mark.parametrize("kinds", [("skips",), ("waits", "skips")])
def test_onion_with_unreached_core_does_not_open(event_loop: EventLoopThread, kinds: tuple[str, ...]) -> None:
    one = passage(event_loop, *kinds)
    with pytest.raises(MiddlewareError, match=r"did not call next\(\)"):
        blocking(one.onion.enter(one.run(), is_async=False))


def test_middleware_that_fails_is_named(event_loop: EventLoopThread) -> None:
    one = passage(event_loop, "plain", "fails")
    with pytest.raises(MiddlewareError, match=r"ext\.fails raised KeyError"):
        blocking(one.onion.enter(one.run(), is_async=False))


def test_middlewares_that_take_too_long_are_given_up(
    event_loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleeps(ctx: Any) -> Any:
        await asyncio.sleep(600)

    monkeypatch.setattr("workers.turns.pipeline.MOST_SECONDS", 0.05)
    one = Passage(event_loop, sleeps)
    with pytest.raises(MiddlewareError, match=r"longer than 0\.05 s"):
        blocking(one.onion.enter(one.run(), is_async=False))


@pytest.mark.parametrize("afterwards", ["goes on", "hangs"])
def test_untimed_waits_cost_no_middleware_time(
    event_loop: EventLoopThread, monkeypatch: pytest.MonkeyPatch, afterwards: str
) -> None:
    async def answer_late(question: str) -> str:
        await asyncio.sleep(0.3)  # longer than the limit
        return f"{question}: yes"

    async def asks(ctx: Any) -> Any:
        one.said += await asyncio.gather(*(one.onion.untimed(answer_late, each) for each in ("a", "b")))
        if afterwards == "hangs":
            await asyncio.sleep(600)
        return await ctx.next()

    async def hold() -> Any:
        await one.onion.enter(one.run(), is_async=True)
        return await one.onion.leave(CoreOutcome("result"), is_async=True)

    monkeypatch.setattr("workers.turns.pipeline.MOST_SECONDS", 0.1)
    one = Passage(event_loop, asks)
    held = event_loop.submit(hold())
    if afterwards == "hangs":
        with pytest.raises(MiddlewareError, match=r"longer than 0\.1 s"):
            held.result(30)
    else:
        assert held.result(30) == "result"
    assert one.said == ["a: yes", "b: yes", "core"][: 2 if afterwards == "hangs" else 3]


@pytest.mark.parametrize("is_async", [True, False])
def test_middleware_abandoning_next_is_reported_after_step(
    event_loop: EventLoopThread, is_async: bool
) -> None:
    has_given_up = threading.Event()

    async def impatient(ctx: Any) -> Any:
        try:
            async with asyncio.timeout(0.01):
                return await ctx.next()
        finally:
            has_given_up.set()

    one = Passage(event_loop, impatient)

    async def hold() -> Any:
        await one.onion.enter(one.run(), is_async=True)
        await asyncio.to_thread(has_given_up.wait, 30)
        return await one.onion.leave(CoreOutcome("result"), is_async=True)

    with pytest.raises(MiddlewareError, match=r"ext\.impatient raised TimeoutError"):
        if is_async:
            event_loop.submit(hold()).result(30)
        else:
            blocking(one.onion.enter(one.run(), is_async=False))
            assert has_given_up.wait(30)
            blocking(one.onion.leave(CoreOutcome("result"), is_async=False))


def test_breaking_off_lets_middlewares_clean_up(event_loop: EventLoopThread) -> None:
    one = passage(event_loop, "waits")

    async def hold() -> None:
        await one.onion.enter(one.run(), is_async=True)
        one.onion.break_off()

    event_loop.submit(hold()).result(30)
    wait_until(lambda: one.said == ["waits in", "core", "waits out"])


def test_plain_code_does_not_await_event_loop_work() -> None:
    has_ended = []

    async def suspends() -> None:
        try:
            await move_to_loop()
        finally:
            has_ended.append(True)

    with pytest.raises(RuntimeError, match="on the event loop"):
        blocking(suspends())
    assert has_ended == [True]
