"""What was said and done in a Turn, in the older version's messages (002 §4.4, §6.2, appendix A)."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.messages import JsonObject, assistant_message
from goondan_tasks.messages import ToolCall as WireCall
from goondan_tasks.steps.history import PastCall, TurnHistory
from goondan_tasks.steps.llm_messages import asking_message, llm_messages, tool_message
from goondan_tasks.v1_api import LlmResult, ToolCall, ToolResult
from workers.v1.results import v1_result


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history of a Turn, and the call that is in somebody's hands, if it is one."""

    history: TurnHistory
    current: WireCall | None = None

    def messages(self) -> list[JsonObject]:
        """Return all that was said, in order, each call and each answer once.

        A Step may begin with what the Step before it has ended with.
        """
        told: set[str] = set()
        messages: list[JsonObject] = []
        for message in self._all_messages():
            ids = _ids_of(message)
            if not ids or not ids <= told:
                messages.append(message)
            told |= ids
        return messages

    def results(self) -> dict[str, ToolResult]:
        """Return the results that there are, by the calls' ids."""
        return {
            past.call.tool_call_id: v1_result(past.result)
            for past in self.history.calls.values()
            if past.result is not None
        }

    def llm_result(self) -> LlmResult | None:
        """Return what the model has said to ask for the current call."""
        said = [] if self.current is None else [*_asked(self.current)]
        return LlmResult(said[-1]) if said else None

    def pending_calls(self) -> list[ToolCall]:
        """Return the calls of the current one's Step that have no result yet, that one among them."""
        if self.current is None:
            return []
        step_id, is_over = self.current.step_id, self.results()
        others = (past.call for past in self.history.calls.values() if past.call.step_id == step_id)
        asked = {call.tool_call_id: v1_call(call) for call in others if step_id is not None}
        for message in _asked(self.current):
            asked |= {call["id"]: ToolCall(**call) for call in message.get("toolCalls", ())}
        asked[self.current.tool_call_id] = v1_call(self.current)
        return [call for call_id, call in asked.items() if call_id not in is_over]

    def _all_messages(self) -> Iterator[JsonObject]:
        for entry in self.history.entries:
            if entry.message is not None:
                yield from llm_messages(entry.message)
            calls = [self.history.calls[one] for one in entry.call_ids if one in self.history.calls]
            if calls:
                yield from _said_of(calls)
        if self.current is not None:
            yield from _asked(self.current)


def event_message(event: AgentEvent) -> JsonObject:
    """Return what an event says to its agent: its input, as text or as JSON."""
    said = event.input
    return {"role": "user", "content": said if isinstance(said, str) else serializer.encode(said).decode()}


def v1_call(call: WireCall) -> ToolCall:
    """Return a call as the older version has it; whoever changes its arguments changes no message."""
    return ToolCall(call.tool_call_id, call.tool_name, deepcopy(call.args))


def _said_of(calls: Sequence[PastCall]) -> Iterator[JsonObject]:
    """Yield what the model asked for at once, and the answers that there are."""
    asked = [
        {"id": one.call.tool_call_id, "name": one.call.tool_name, "arguments": one.call.args} for one in calls
    ]
    yield asking_message(asked)
    for one in calls:
        if one.result is not None:
            yield tool_message(one.call.tool_call_id, one.call.tool_name, one.result)


def _asked(call: WireCall) -> Iterator[JsonObject]:
    """Yield the message that holds a call."""
    message = call.message or assistant_message(
        call.tool_call_id, call.tool_name, call.args, step_id=call.step_id or call.turn_id, now=""
    )
    yield from llm_messages(message.data)


def _ids_of(message: JsonObject) -> set[str]:
    """Return the ids of the calls that a message asks for, or answers."""
    asked = {f"call {call['id']}" for call in message.get("toolCalls", ())}
    return asked | {f"answer {message['toolCallId']}"} if message["role"] == "tool" else asked
