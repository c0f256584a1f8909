"""Runs the Turn of an agent's entry inside its middlewares."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from goondan_tasks.authoring.extension_api import TurnContext
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.events import event_of
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import RunOnThread
from workers.extensions.events import TURN_COMPLETED, TURN_FAILED, TURN_STARTED, EventListeners, tell_of_turn
from workers.extensions.pipelines import AgentPipelines
from workers.turns.pipeline import Core, Layer, OnError, compose

AskModel = Callable[..., Awaitable[str]]

#: runs a chain of middlewares within their time limit
Within = Callable[[Sequence[Layer], Callable[[], Awaitable[Any]]], Awaitable[Any]]


@dataclass(slots=True)
class TurnState:
    """The input of one run of a Turn besides its event, and its output besides its answer."""

    #: set if the agent thinks
    conversation: Conversation | None = None
    #: see :meth:`StepContext.ask_model`; the first argument is the Step's index
    ask_model: AskModel | None = None
    #: tokens by kind
    usage: Counter[str] = field(default_factory=Counter)
    #: how often it thought, by the input's digest
    thinkings: Counter[str] = field(default_factory=Counter)
    #: ``text_response``, ``length``, ``max_steps`` or ``budget``
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        return self.usage["input"] + self.usage["output"]


class Turns:
    """Runs entries inside their agents' turn middlewares, and emits ``turn.*``."""

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
        """Handle one event; return the answer as the outermost middleware returns it.

        Raises:
            Exception: whatever ``handle`` or a middleware raises.
        """
        call = run.call
        tell_of_turn(self._events, TURN_STARTED, call)
        with OnError(partial(tell_of_turn, self._events, TURN_FAILED, call)):
            layers = self._pipelines.layers(call.agent_name, "turn")
            outer = self._pipelines.v1.around_turn(call)
            if layers or outer:
                turn: Core[TurnContext] = compose(layers, lambda _: handle(), on_thread=on_thread)
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
                answer = await within(layers, partial(turn, context))
            else:
                answer = await handle()
        tell_of_turn(self._events, TURN_COMPLETED, call)
        return answer
