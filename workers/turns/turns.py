"""Runs the Turn of an agent's entry inside its middlewares."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from goondan_tasks.authoring.extension_api import TurnContext
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.events import event_of
from goondan_tasks.contract.on_error import OnError
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import RunOnThread
from workers.extensions.events import TURN_COMPLETED, TURN_FAILED, TURN_STARTED, EventListeners, tell_of_turn
from workers.extensions.pipelines import AgentPipelines
from workers.turns.pipeline import Core, compose
from workers.turns.turn_state import TurnState


async def around_turn(
    run: Run,
    handle: Callable[[], Awaitable[Any]],
    pipelines: AgentPipelines,
    events: EventListeners,
    *,
    cancellation: Cancellation,
    on_thread: RunOnThread,
    state: TurnState,
) -> Any:
    """Handle one event inside the agent's turn middlewares, and emit ``turn.*``.

    Return the answer as the outermost middleware returns it.

    Raises:
        Exception: whatever ``handle`` or a middleware raises.
    """
    call = run.call
    tell_of_turn(events, TURN_STARTED, call)
    with OnError(partial(tell_of_turn, events, TURN_FAILED, call)):
        layers, outer = pipelines.layers(call.agent_name, "turn"), pipelines.v1.around_turn(call)
        if layers or outer:
            turn: Core[TurnContext] = compose(layers, lambda _: handle(), on_thread=on_thread)
            if outer:
                turn = outer.composed(turn, cancellation, on_thread)
            context = TurnContext(
                call.agent_name,
                call.instance_key,
                call.turn_id,
                call.trace_id,
                event_of(call, run.clock()),
                auth=call.auth,
                origin=call.origin,
                conversation_state=state.conversation,
            )
            answer = await turn(context)
        else:
            answer = await handle()
    tell_of_turn(events, TURN_COMPLETED, call)
    return answer
