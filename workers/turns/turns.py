"""The Turn of an agent's entry, with its middlewares around it."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from goondan_tasks.calls import Run
from goondan_tasks.events import event_of
from goondan_tasks.extension_api import TurnContext
from goondan_tasks.messages import ToolCall
from workers.cancellation import Cancellation
from workers.concurrency.beside_loop import RunOnThread
from workers.extensions.events import Events
from workers.extensions.pipelines import Pipelines
from workers.extensions.turn_news import TURN_COMPLETED, TURN_FAILED, TURN_STARTED, tell_of_turn
from workers.turns.pipeline import Layer, compose

#: limits the way through some middlewares
Within = Callable[[Sequence[Layer], Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Turns:
    """Lets entries handle their events inside of the agents' turn middlewares."""

    def __init__(self, pipelines: Pipelines, events: Events) -> None:
        self._pipelines = pipelines
        self._events = events

    async def around(
        self,
        run: Run,
        handle: Callable[[], Awaitable[Any]],
        *,
        within: Within,
        cancellation: Cancellation,
        on_thread: RunOnThread,
    ) -> Any:
        """Handle one event; return what the outermost middleware makes of the agent's answer.

        Middlewares are gone through ``within`` their limit.

        Raises:
            Exception: whatever ``handle`` or a middleware raises.
        """
        with _Told(self._events, run.call):
            layers = self._pipelines.layers(run.call.agent_name, "turn")
            v1_way = self._pipelines.v1.turn_way(run.call)
            if not (layers or v1_way):
                return await handle()

            async def core(_: TurnContext) -> Any:
                return await handle()

            turn = compose(layers, core, on_thread=on_thread)
            if v1_way:
                turn, layers = (
                    v1_way.composed(turn, cancellation, on_thread),
                    (*layers, *v1_way.pre, *v1_way.post),
                )
            return await within(layers, partial(turn, _context(run)))


def _context(run: Run) -> TurnContext:
    call = run.call
    return TurnContext(
        call.agent_name,
        call.instance_key,
        call.turn_id,
        call.trace_id,
        event_of(call, run.clock()),
        auth=call.auth,
        origin=call.origin,
    )


class _Told:
    """Tells extensions how the Turn begins and ends."""

    def __init__(self, events: Events, call: ToolCall) -> None:
        self._events = events
        self._call = call

    def __enter__(self) -> None:
        tell_of_turn(self._events, TURN_STARTED, self._call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name = TURN_COMPLETED if error is None else TURN_FAILED
        tell_of_turn(self._events, name, self._call, error)
