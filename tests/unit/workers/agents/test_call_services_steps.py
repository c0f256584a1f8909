"""Steps that an agent's entry opens."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.names import EVENT_TOOL
from goondan_tasks.history import StepStore
from tests.unit.workers.default_threads import take_default_threads_away
from workers.agents.call_services import AgentTurn, AsyncEntryStep, BlockingEntryStep
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registry import Registry
from workers.turns.steps import Steps, StepTerms

KITCHEN = Path(__file__).parents[3] / "bundles" / "kitchen"

NO_TOOLS: Any = None


class Store(StepStore):
    """Cannot keep a Step, after a while."""

    def __init__(self, redis: fakeredis.FakeRedis) -> None:
        super().__init__(redis, Keys(), 60)
        self.is_asked = threading.Event()
        self.answers = threading.Event()

    def keep(self, *args: Any, **fields: Any) -> bool:
        self.is_asked.set()
        assert self.answers.wait(30)
        raise ValueError("not kept")


class Kitchen:
    """What opens Steps, and a middleware that cleans up."""

    def __init__(self, event_loop: EventLoopThread, store: StepStore) -> None:
        pipelines = AgentPipelines()
        pipelines.register("chef", "step", self._tidies, extension="tidy")
        self.is_tidy = threading.Event()
        self.steps = Steps(
            store,
            Registry(load_bundle(KITCHEN), Isolation(Children(), ""), HostedTools(Hosts(), KITCHEN, "")),
            pipelines,
            events=EventListeners(event_loop.submit),
            event_loop=event_loop,
            terms=StepTerms(most_steps=2, max_args_bytes=1000, help_url=""),
        )

    async def _tidies(self, ctx: Any) -> Any:
        try:
            return await ctx.next()
        finally:
            self.is_tidy.set()

    def turn(self, attempt: int = 1) -> AgentTurn:
        event = new_call("chef", EVENT_TOOL, {}, {"turn_id": "t", "tool_call_id": "e"})
        return AgentTurn(event, attempt, lambda: self.steps)


@pytest.fixture
def redis() -> Iterator[fakeredis.FakeRedis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def event_loop() -> Iterator[EventLoopThread]:
    event_loop = EventLoopThread()
    event_loop.start()
    yield event_loop
    event_loop.stop()


def test_middlewares_clean_up_if_their_step_cannot_be_kept(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    store = Store(redis)
    store.answers.set()
    kitchen = Kitchen(event_loop, store)
    with pytest.raises(ValueError, match="not kept"):
        BlockingEntryStep(kitchen.turn(), None, NO_TOOLS).__enter__()
    assert kitchen.is_tidy.wait(30)


def test_middlewares_clean_up_if_their_turn_is_cancelled_before_the_step_is_kept(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    store = Store(redis)
    kitchen = Kitchen(event_loop, store)
    entered = event_loop.submit(AsyncEntryStep(kitchen.turn(), None, NO_TOOLS).__aenter__())
    assert store.is_asked.wait(30)
    entered.cancel()
    is_tidy = kitchen.is_tidy.wait(30)
    store.answers.set()
    assert is_tidy


def test_steps_open_though_all_default_threads_are_taken(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    async def use_step() -> int:
        take_default_threads_away()
        async with AsyncEntryStep(kitchen.turn(), None, NO_TOOLS) as step:
            assert await step.run([]) == []
        return step.index

    kitchen = Kitchen(event_loop, StepStore(redis, Keys(), 60))
    assert event_loop.submit(use_step()).result(30) == 0


def test_steps_that_are_open_at_once_are_two(redis: fakeredis.FakeRedis, event_loop: EventLoopThread) -> None:
    async def use_both() -> tuple[set[int], set[str]]:
        turn = kitchen.turn()
        steps = [AsyncEntryStep(turn, None, NO_TOOLS) for _ in range(2)]
        await asyncio.gather(*(step.__aenter__() for step in steps))
        for step in steps:
            await step.__aexit__(None, None, None)
        return {step.index for step in steps}, {step.id for step in steps}

    kitchen = Kitchen(event_loop, StepStore(redis, Keys(), 60))
    indexes, ids = event_loop.submit(use_both()).result(30)
    assert (indexes, len(ids)) == ({0, 1}, 2)


def test_nothing_is_called_in_a_step_that_has_ended(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    kitchen = Kitchen(event_loop, StepStore(redis, Keys(), 60))
    with BlockingEntryStep(kitchen.turn(), None, NO_TOOLS) as step:
        assert step.run([]) == []
    with pytest.raises(RuntimeError, match="only inside its with block"):
        step.run([])


def test_an_event_that_is_run_again_opens_steps_of_its_own(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    kitchen = Kitchen(event_loop, StepStore(redis, Keys(), 60))
    opened = []
    for attempt in (1, 2, 2):
        with BlockingEntryStep(kitchen.turn(attempt), None, NO_TOOLS) as step:
            opened.append((step.index, step.id))
    first, again, once_more = opened
    assert first != again == once_more
    assert {index for index, _ in opened} == {0}
