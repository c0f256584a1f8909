"""What was said and done in a Turn, in the older version's messages (002 §4.4, §6.2, appendix A)."""

from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.calls import identity_of
from goondan_tasks.messages import AgentEvent, JsonObject, assistant_message
from goondan_tasks.messages import ToolCall as WireCall
from goondan_tasks.model_messages import asking_message, llm_messages, tool_message
from goondan_tasks.steps import PastCall, TurnHistory
from goondan_tasks.v1_api import LlmResult, ToolCall, ToolResult
from workers.v1.results import v1_result


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history of a Turn, and the call that is in somebody's hands, if it is one."""

    history: TurnHistory
    current: WireCall | None = None

    def messages(self) -> list[JsonObject]:
        """Return all that was said, in order, each call and each answer once.

        A Step may begin with what the Step before it has ended with. Models use their ids again: an id
        tells calls apart within a Step only.
        """
        told: set[str] = set()
        messages: list[JsonObject] = []
        for entry in self.history.entries:
            if entry.message is not None:
                messages += _untold(llm_messages(entry.message), told)
                told = set()
            calls = [self.history.calls[one] for one in entry.call_ids if one in self.history.calls]
            said = list(_said_of(calls))
            messages += said
            told |= {one for message in said for one in _ids_of(message)}
        if self.current is not None and not self._has_told(self.current):
            messages += _asked(self.current)
        return messages

    def _has_told(self, call: WireCall) -> bool:
        """Say whether what the model said to ask for a call is in the history already."""
        told = [
            self.history.calls[one].call
            for entry in self.history.entries
            for one in entry.call_ids
            if one in self.history.calls
        ]
        return any(_is_beside(one, call) for one in told)

    def results(self) -> dict[str, ToolResult]:
        """Return the results that there are, by the calls' ids."""
        return {
            past.call.shown_id: v1_result(past.result)
            for past in self.history.calls.values()
            if past.result is not None
        }

    def llm_result(self) -> LlmResult | None:
        """Return what the model has said to ask for the current call."""
        said = [] if self.current is None else [*_asked(self.current)]
        return LlmResult(said[-1]) if said else None

    def pending_calls(self) -> list[ToolCall]:
        """Return the calls of the current one's Step in call order: all that the model asked for with it.

        Of its other answers in the Step those without a result come before them.
        """
        current = self.current
        if current is None:
            return []
        asked = [call for message in _asked(current) for call in message.get("toolCalls", ())]
        others = [
            v1_call(past.call)
            for past in self.history.calls.values()
            if past.result is None and _is_elsewhere_in_step(past.call, current)
        ]
        return others + [ToolCall(**deepcopy(call)) for call in asked]


def event_message(event: AgentEvent) -> JsonObject:
    """Return what an event says to its agent: its input, as text or as JSON."""
    said = event.input
    return {"role": "user", "content": said if isinstance(said, str) else serializer.encode(said).decode()}


def v1_call(call: WireCall) -> ToolCall:
    """Return a call as the older version has it; whoever changes its arguments changes no message."""
    return ToolCall(call.shown_id, call.tool_name, deepcopy(call.args))


def _is_beside(one: WireCall, other: WireCall) -> bool:
    """Say whether a model asked for two calls in one answer, or they are the same."""
    is_same_message = one.message is not None and one.message == other.message
    return identity_of(one) == identity_of(other) or (one.step_id == other.step_id and is_same_message)


def _is_elsewhere_in_step(one: WireCall, current: WireCall) -> bool:
    is_in_step = current.step_id is not None and one.step_id == current.step_id
    return is_in_step and not _is_beside(one, current)


def _said_of(calls: Sequence[PastCall]) -> Iterator[JsonObject]:
    """Yield what the model asked for at once, and the answers that there are."""
    asked = [
        {"id": one.call.shown_id, "name": one.call.tool_name, "arguments": one.call.args} for one in calls
    ]
    message = next((one.call.message for one in calls if one.call.message is not None), None)
    if message is not None:
        yield from llm_messages(message.data)
    elif asked:
        yield asking_message(asked)
    for one in calls:
        if one.result is not None:
            yield tool_message(one.call.shown_id, one.call.tool_name, one.result)


def _asked(call: WireCall) -> Iterator[JsonObject]:
    """Yield the message that holds a call."""
    message = call.message or assistant_message(
        call.shown_id, call.tool_name, call.args, step_id=call.step_id or call.turn_id, now=""
    )
    yield from llm_messages(message.data)


def _untold(messages: Sequence[JsonObject], told: Collection[str]) -> Iterator[JsonObject]:
    """Yield what the Step before has not ended with."""
    for message in messages:
        ids = _ids_of(message)
        if not ids or not ids.issubset(told):
            yield message


def _ids_of(message: JsonObject) -> set[str]:
    """Return the ids of the calls that a message asks for, or answers."""
    asked = {f"call {call['id']}" for call in message.get("toolCalls", ())}
    return asked | {f"answer {message['toolCallId']}"} if message["role"] == "tool" else asked
