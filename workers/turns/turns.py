"""The Turn of an agent's entry, with its middlewares around it."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from goondan_tasks.calls import Run
from goondan_tasks.conversation import Conversation
from goondan_tasks.events import event_of
from goondan_tasks.extension_api import TurnContext
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import RunOnThread
from workers.extensions.events import TURN_COMPLETED, TURN_FAILED, TURN_STARTED, EventListeners, tell_of_turn
from workers.extensions.pipelines import AgentPipelines
from workers.turns.pipeline import Layer, OnError, compose

AskModel = Callable[..., Awaitable[str]]

#: limits the way through some middlewares
Within = Callable[[Sequence[Layer], Callable[[], Awaitable[Any]]], Awaitable[Any]]


@dataclass(slots=True)
class TurnState:
    """What one run of a Turn has besides its event, and leaves besides its answer."""

    #: of an agent that thinks
    conversation: Conversation | None = None
    #: see :meth:`StepContext.ask_model`; its first argument is the Step's index
    ask_model: AskModel | None = None
    #: tokens, by kind
    usage: Counter[str] = field(default_factory=Counter)
    #: ``text_response``, ``length``, ``max_steps`` or ``budget``
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        """How many tokens the Turn has used."""
        return self.usage["input"] + self.usage["output"]


class Turns:
    """Runs entries inside the agents' turn middlewares, and emits ``turn.*``."""

    def __init__(self, pipelines: AgentPipelines, events: EventListeners) -> None:
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
        state: TurnState,
    ) -> Any:
        """Handle one event; return what the outermost middleware makes of the agent's answer.

        ``within`` limits the time that the middlewares take.

        Raises:
            Exception: whatever ``handle`` or a middleware raises.
        """
        tell_of_turn(self._events, TURN_STARTED, run.call)
        with OnError(partial(tell_of_turn, self._events, TURN_FAILED, run.call)):
            answer = await self._through(run, handle, within, cancellation, on_thread, state)
        tell_of_turn(self._events, TURN_COMPLETED, run.call)
        return answer

    async def _through(
        self,
        run: Run,
        handle: Callable[[], Awaitable[Any]],
        within: Within,
        cancellation: Cancellation,
        on_thread: RunOnThread,
        state: TurnState,
    ) -> Any:
        call = run.call
        layers = self._pipelines.layers(call.agent_name, "turn")
        outer = self._pipelines.around_turn(call)
        if not (layers or outer):
            return await handle()

        async def core(_: TurnContext) -> Any:
            return await handle()

        turn = compose(layers, core, on_thread=on_thread)
        if outer:
            turn = outer.composed(turn, cancellation, on_thread)
            layers = (*layers, *outer.functions)
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
        return await within(layers, partial(turn, context))
