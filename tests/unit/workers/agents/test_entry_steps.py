"""Steps that an agent's entry opens."""

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fakeredis
import pytest
from redis.exceptions import ResponseError

from broker_config.keys import Keys
from broker_config.scripts import ScriptCall
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import RecordDamagedError
from goondan_tasks.contract.names import EVENT_TOOL
from goondan_tasks.history import StepStore
from tests.unit.workers.default_threads import take_default_threads_away
from workers.agents.call_services import AgentTools
from workers.agents.entry_steps import AgentTurn, AsyncEntryStep, BlockingEntryStep
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registry import Registry
from workers.turns.steps import Steps, StepTerms

STEPS_BUNDLE = Path(__file__).parents[3] / "bundles" / "steps"


def tools_of(redis: fakeredis.FakeRedis) -> Any:
    """Return tools without calls, whose writer runs a script call at once."""

    def post(script_call: ScriptCall[Any], *, is_awaited: bool) -> "Future[Any]":
        assert is_awaited
        posted: Future[Any] = Future()
        posted.set_result(script_call.run(redis))
        return posted

    return SimpleNamespace(handoffs=SimpleNamespace(post=post))


class Unanswered:
    """Tools whose writer answers when the test does."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.is_awaited = False
        self.answer: Future[bool] = Future()
        self.handoffs = self

    def post(self, script_call: ScriptCall[Any], *, is_awaited: bool) -> "Future[bool]":
        self.is_awaited = is_awaited
        self.is_asked.set()
        return self.answer


class StepCalls:
    """What opens Steps, and a middleware that cleans up."""

    def __init__(self, event_loop: EventLoopThread, store: StepStore) -> None:
        pipelines = AgentPipelines()
        pipelines.register("chef", "step", self._tidies, extension="tidy")
        self.is_tidy = threading.Event()
        self.steps = Steps(
            store,
            Registry(
                load_bundle(STEPS_BUNDLE), Isolation(Children(), ""), HostedTools(Hosts(), STEPS_BUNDLE, "")
            ),
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


def test_middlewares_clean_up_when_keeping_step_fails(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    steps_stack, tools = StepCalls(event_loop, StepStore(redis, Keys(), 60)), Unanswered()
    tools.answer.set_exception(ResponseError("WRONGTYPE Operation against a key"))
    with pytest.raises(RecordDamagedError, match="WRONGTYPE"):
        BlockingEntryStep(steps_stack.turn(), None, cast("AgentTools", tools)).__enter__()
    assert steps_stack.is_tidy.wait(30)


def test_middlewares_clean_up_after_cancel_before_keeping_step(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    steps_stack, tools = StepCalls(event_loop, StepStore(redis, Keys(), 60)), Unanswered()
    step = AsyncEntryStep(steps_stack.turn(), None, cast("AgentTools", tools))
    entered = event_loop.submit(step.__aenter__())
    assert tools.is_asked.wait(30)
    entered.cancel()
    assert steps_stack.is_tidy.wait(30)
    assert not tools.answer.cancelled()  # the writer answers it


def test_thinking_agents_calls_wait_for_kept_step(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    async def use_step() -> None:
        async with step:
            opened.set()
            await step.run([])

    steps_stack, tools, opened = (
        StepCalls(event_loop, StepStore(redis, Keys(), 60)),
        Unanswered(),
        threading.Event(),
    )
    turn = dataclasses.replace(steps_stack.turn(), prepares_at_once=True)
    step = AsyncEntryStep(turn, None, cast("AgentTools", tools), Conversation())
    used = event_loop.submit(use_step())
    assert opened.wait(30)
    assert not tools.is_awaited
    assert not used.done()
    tools.answer.set_exception(ResponseError("WRONGTYPE Operation against a key"))
    with pytest.raises(RecordDamagedError, match="WRONGTYPE"):
        used.result(30)
    assert steps_stack.is_tidy.wait(30)


def test_steps_open_though_all_default_threads_are_taken(
    redis: fakeredis.FakeRedis, event_loop: EventLoopThread
) -> None:
    async def use_step() -> int:
        take_default_threads_away()
        async with AsyncEntryStep(steps_stack.turn(), None, tools_of(redis)) as step:
            assert await step.run([]) == []
        return step.index

    steps_stack = StepCalls(event_loop, StepStore(redis, Keys(), 60))
    assert event_loop.submit(use_step()).result(30) == 0


def test_steps_that_are_open_at_once_are_two(redis: fakeredis.FakeRedis, event_loop: EventLoopThread) -> None:
    async def use_both() -> tuple[set[int], set[str]]:
        turn = steps_stack.turn()
        steps = [AsyncEntryStep(turn, None, tools_of(redis)) for _ in range(2)]
        await asyncio.gather(*(step.__aenter__() for step in steps))
        for step in steps:
            await step.__aexit__(None, None, None)
        return {step.index for step in steps}, {step.id for step in steps}

    steps_stack = StepCalls(event_loop, StepStore(redis, Keys(), 60))
    indexes, ids = event_loop.submit(use_both()).result(30)
    assert (indexes, len(ids)) == ({0, 1}, 2)


def test_ended_step_runs_no_calls(redis: fakeredis.FakeRedis, event_loop: EventLoopThread) -> None:
    steps_stack = StepCalls(event_loop, StepStore(redis, Keys(), 60))
    with BlockingEntryStep(steps_stack.turn(), None, tools_of(redis)) as step:
        assert step.run([]) == []
    with pytest.raises(RuntimeError, match="only inside its with block"):
        step.run([])


def test_rerun_event_opens_its_own_steps(redis: fakeredis.FakeRedis, event_loop: EventLoopThread) -> None:
    steps_stack = StepCalls(event_loop, StepStore(redis, Keys(), 60))
    opened = []
    for attempt in (1, 2, 2):
        with BlockingEntryStep(steps_stack.turn(attempt), None, tools_of(redis)) as step:
            opened.append((step.index, step.id))
    first, again, once_more = opened
    assert first != again == once_more
    assert {index for index, _ in opened} == {0}
