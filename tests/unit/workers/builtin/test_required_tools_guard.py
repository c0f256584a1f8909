"""The built-in extension ``required-tools-guard``: its own bookkeeping, Turn by Turn."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import StepContext, StepResult, ToolCallContext, TurnContext
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import AgentEvent, EventSource
from tests.unit.workers.runs import job_of
from workers.builtin.required_tools_guard import RequiredToolsConfig, RequiredToolsGuard
from workers.extensions.events import running
from workers.extensions.state import ExtensionState, MemoryState, StateOwner

AGENT = "critic"
EVENT = AgentEvent(
    id="nightly",
    type="tick",
    created_at="2026-01-01T00:00:00.000Z",
    source=EventSource(kind="connector", name="clock"),
)


class Desk:
    """One worker's guard, and what is remembered."""

    def __init__(self, store: MemoryState | None = None) -> None:
        self._store = store or MemoryState()
        api: Any = SimpleNamespace(state=ExtensionState(self._store, AGENT, "required-tools-guard"))
        self._guard = RequiredToolsGuard(
            api, RequiredToolsConfig.model_validate({"requiredTools": ["stove__cook"]})
        )

    async def turn(self, instance: str, handle: Callable[[], Awaitable[Any]]) -> Any:
        """Handle an event that every instance is sent under the same id."""
        event = new_call(AGENT, "goondan__event", {}, {"instance_key": instance, "turn_id": "turn-nightly"})
        running.set(job_of(event))
        context = TurnContext(AGENT, instance, "turn-nightly", "", EVENT)
        return await self._guard.require(context.layer(handle))

    async def cook(self, instance: str, turn_id: str = "turn-nightly") -> None:
        """Call the required tool."""
        call = new_call(AGENT, "stove__cook", {}, {"instance_key": instance, "turn_id": turn_id})
        running.set(job_of(call))

        async def cooked() -> Any:
            return SimpleNamespace(status="ok")

        context = ToolCallContext("stove__cook", "c1", {}, AGENT, instance, turn_id)
        await self._guard.notice(context.layer(cooked))

    async def step(self, instance: str, index: int, *results: Any) -> bool:
        """Take a Step whose calls had these results; return whether the guard continues the Turn."""

        async def taken() -> StepResult:
            return StepResult(tuple({} for _ in results), results)

        context = StepContext(AGENT, instance, "turn-nightly", "", f"step-{index}", index, [])
        result = await self._guard.remind(context.layer(taken))
        return bool(result.metadata.get("shouldContinue"))

    def remembered(self, instance: str) -> list[str]:
        """Return what is kept for an instance."""
        return self._store.keys(StateOwner(AGENT, "required-tools-guard", instance))


def test_instances_sharing_turn_id_do_not_interfere() -> None:
    async def both() -> list[Any]:
        desk, are_open = Desk(), asyncio.Barrier(2)

        async def handle(instance: str) -> str:
            await are_open.wait()
            await desk.cook(instance)
            await are_open.wait()
            return instance

        turns = [asyncio.create_task(desk.turn(one, partial(handle, one))) for one in ("a", "b")]
        return await asyncio.wait_for(asyncio.gather(*turns), 30)

    assert asyncio.run(both()) == ["a", "b"]


def test_calls_of_other_instance_do_not_count() -> None:
    async def alone() -> None:
        desk = Desk()

        async def handle() -> None:
            await asyncio.create_task(desk.cook("another"))

        with pytest.raises(HandoffError, match="without a successful call"):
            await desk.turn("a", handle)

    asyncio.run(alone())


def test_ended_turns_and_outside_calls_are_forgotten() -> None:
    async def use() -> list[str]:
        desk = Desk()
        await desk.turn("a", lambda: desk.cook("a"))
        for number in range(3):
            await desk.cook("a", f"turn-of-a-producer-{number}")
        return desk.remembered("a")

    assert asyncio.run(use()) == []


def test_rerun_after_worker_death_counts_earlier_call() -> None:
    cooked = SimpleNamespace(status="ok", tool_name="stove__cook")

    async def run_twice() -> list[Any]:
        store, steps = MemoryState(), list[bool]()

        async def first() -> None:
            desk = Desk(store)

            async def dies() -> None:
                steps.append(await desk.step("a", 0))
                await desk.cook("a")
                raise asyncio.CancelledError

            await desk.turn("a", dies)

        async def goes_on() -> str:
            for index, results in enumerate([(), (cooked,), ()]):
                steps.append(await second.step("a", index, *results))
            return "done"

        with pytest.raises(asyncio.CancelledError):
            await first()
        second = Desk(store)
        answer = await second.turn("a", goes_on)
        return [answer, steps, second.remembered("a")]

    # both runs remind the model after the first Step, and only there
    assert asyncio.run(run_twice()) == ["done", [True, True, False, False], []]


def test_run_counts_call_whose_result_comes_from_ledger() -> None:
    async def run() -> Any:
        desk = Desk()

        async def handle() -> bool:
            await desk.step("a", 0, SimpleNamespace(status="ok", tool_name="stove__cook"))
            return await desk.step("a", 1)

        return await desk.turn("a", handle)

    assert asyncio.run(run()) is False
