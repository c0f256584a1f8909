"""The way of one Turn through the functions of the older version's extensions."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import TurnContext
from goondan_tasks.authoring.v1_api import EffectiveConfig, SwarmInstance, Turn, TurnPipelineContext
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import MiddlewareError
from goondan_tasks.contract.events import event_of
from goondan_tasks.contract.messages import AgentEvent, ToolCall
from goondan_tasks.contract.names import EVENT_TOOL
from workers.cancellation import Cancellation
from workers.concurrency.threads import on_new_thread
from workers.v1.chains import Mutator, TurnWay

CALL = new_call("coder", EVENT_TOOL, {"payload": {"id": "e", "input": "hi"}}, {})


class Contexts:
    """Makes contexts of a bundle without resources; the Turn has no record but what it is said to have."""

    def of_turn(self, call: ToolCall, event: AgentEvent) -> TurnPipelineContext:
        """See :class:`workers.v1.views.Views`."""
        return TurnPipelineContext(
            instance=SwarmInstance("swarm-k", "k", "swarm"),
            swarm=None,  # type: ignore[arg-type]  # nobody looks
            agent=None,  # type: ignore[arg-type]
            turn=Turn("t", "swarm-k", "coder"),
            effective_config=EffectiveConfig(None, None),  # type: ignore[arg-type]
            event=event,
        )

    def ended_turn(self, call: ToolCall, event: AgentEvent, begun: Turn) -> Turn:
        """See :class:`workers.v1.views.Views`."""
        return replace(begun, messages=[{"role": "assistant", "content": "ended"}])


def chain(*functions: Any) -> list[Mutator]:
    return [Mutator(f"ext.{function.__name__}", function, "ext") for function in functions]


def gone(turn: Any, pre: Any = (), post: Any = ()) -> Any:
    event = event_of(CALL, 0)
    context = TurnContext("coder", "k", "t", "trace", event)
    way = TurnWay(CALL, Contexts(), chain(*pre), chain(*post)).composed(  # type: ignore[arg-type]
        turn, Cancellation(), on_new_thread
    )
    return asyncio.run(way(context))  # type: ignore[arg-type]


async def answering(context: TurnContext) -> Any:
    return {"seen": dict(context.metadata)}


def test_pre_precedes_agent_and_post_makes_answer() -> None:
    def pre(ctx: TurnPipelineContext) -> TurnPipelineContext:
        return replace(ctx, metadata={"by": "pre"})

    def post(ctx: TurnPipelineContext) -> None:
        ctx.result = [ctx.result, ctx.metadata["by"]]

    assert gone(answering, [pre], [post]) == [{"seen": {"by": "pre"}}, "pre"]


def test_pre_that_fails_keeps_agent_from_beginning() -> None:
    def pre(ctx: TurnPipelineContext) -> None:
        raise ValueError("not now")

    async def never(context: TurnContext) -> Any:
        raise AssertionError("it has begun")

    with pytest.raises(MiddlewareError, match=r"ext\.pre raised ValueError: not now"):
        gone(never, [pre])


def test_post_does_not_run_if_agent_raises() -> None:
    async def failing(context: TurnContext) -> Any:
        raise KeyError("x")

    def post(ctx: TurnPipelineContext) -> None:
        ran.append(1)

    ran: list[int] = []
    with pytest.raises(KeyError):
        gone(failing, [], [post])
    assert ran == []


def test_pre_sees_event_and_post_its_outcome() -> None:
    def look(ctx: TurnPipelineContext) -> None:
        seen.append((ctx.event.input, list(ctx.turn.messages)))

    seen: list[Any] = []
    gone(answering, [look], [look])
    assert seen == [("hi", []), ("hi", [{"role": "assistant", "content": "ended"}])]
