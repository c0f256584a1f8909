"""The tool calls in a model's reply, as calls of a Step, and their results in the model's format."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import (
    JsonObject,
    Message,
    ResultMeta,
    ToolCallResult,
    call_part,
    iso_time,
    wall_clock,
)
from goondan_tasks.contract.model_messages import (
    ModelCall,
    ModelReply,
    StepCallResult,
    read_model_call,
    read_reply,
)
from goondan_tasks.contract.names import STEP_TOOL, call_identity
from goondan_tasks.history.records import StepRecord

#: fields of a message's data that hold calls beside its content
_CALLS_IN_DATA = ("tool_calls", "toolCalls")


@dataclass(frozen=True, slots=True)
class StepCall:
    """A model's call with the tool's full name and an id that is unique in the Turn."""

    asked: ModelCall
    tool_name: str
    tool_call_id: str
    #: the model's message that contains it; ``None`` if that is too large to send with every call
    message: Message | None = None
    #: the JSON of ``message``
    message_json: bytes = b""

    @property
    def model_call_id(self) -> str | None:
        """The model's id, if it differs from the call's."""
        return None if self.asked.id == self.tool_call_id else self.asked.id

    def to_wire(self) -> JsonObject:
        """Return the call with the model's id, in the form of 003 §6.2."""
        return {"id": self.asked.id, "name": self.tool_name, "args": self.asked.args}

    def answered(self, result: ToolCallResult) -> StepCallResult:
        """Return the result with its message and the model's id."""
        own = {"tool_call_id": self.asked.id, "message": self.asked.message(result)}
        answered = StepCallResult.__new__(StepCallResult)  # model_construct looks at each field
        answered.__setstate__({**result.__getstate__(), "__dict__": {**vars(result), **own}})
        return answered


@dataclass(slots=True)
class TurnCalls:
    """The call ids used in one Turn: models repeat ids from Step to Step (DESIGN §4)."""

    _first_used: dict[str, int] = field(default_factory=dict)
    #: by id: the model's id, the index of the Step, and the count of this model id in the Step
    _used: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def of_step(
        self, record: StepRecord, catalog: ToolCatalog, model_reply: Any, *, max_args_bytes: int
    ) -> list[StepCall]:
        """Read a model's reply, or its tool calls; reading the same reply again returns the same calls.

        Raises:
            ToolInputValidationError: ``model_reply`` is not a model's reply, or a part of it is not a call.
        """
        reply, seen, named = read_reply(model_reply), Counter[str](), []
        for raw in reply.calls:
            call = read_model_call(raw, max_args_bytes=max_args_bytes)
            args = catalog.original_args(call.name, call.args)
            call = call if args is call.args else replace(call, args=args)
            unused_id = self._unused_id(call.id, record.index, seen)
            named.append((call, catalog.original_name(call.name), unused_id))
        message = _message_of(reply, named, record, most_bytes=max_args_bytes)
        return [StepCall(*call, *message) for call in named]

    def _unused_id(self, model_id: str, index: int, seen: Counter[str]) -> str:
        seen[model_id] += 1
        call = (model_id, index, seen[model_id])
        own = self._first_used.setdefault(model_id, index) == index
        name = model_id if own else f"{model_id}.step-{index}"
        if name.startswith(STEP_TOOL):  # reserved for the calls that open Steps
            name = f".{name}"
        if seen[model_id] > 1:
            name = f"{name}.{seen[model_id]}"
        while self._used.setdefault(name, call) != call:
            name = f"{name}.2"
        return name


def _message_of(
    reply: ModelReply, calls: Sequence[tuple[ModelCall, str, str]], record: StepRecord, *, most_bytes: int
) -> tuple[Message, bytes] | tuple[()]:
    """Return the model's whole message, which is sent with each call, and its JSON.

    The calls have their tools' full names and their unique ids. There is none if it is not JSON or too large:
    each call then gets a message of its own.
    """
    if not calls:
        return ()
    call_parts = (call_part(call.id, tool_name, call.args) for call, tool_name, _ in calls)
    content = [next(call_parts) if part is None else part for part in reply.parts]
    given = {} if reply.given is None else dict(reply.given)
    data = {name: value for name, value in given.get("data", {}).items() if name not in _CALLS_IN_DATA}
    message = Message(
        **{
            "id": f"msg-{record.id}-{calls[0][2]}",
            "created_at": iso_time(wall_clock()),
            **given,
            "data": {**data, "role": "assistant", "content": content},
            "source": {"type": "assistant", "stepId": record.id},
        }
    )
    try:
        text = serializer.encode(message.to_wire())
    except serializer.NotJsonError:
        return ()
    return (message, text) if len(text) * len(calls) <= most_bytes else ()


def opening_id(index: int, failures: int) -> str:
    """Return the ``toolCallId`` of the call that opens a Step; a Step's own calls never have such an id.

    The result of a failed call is final, so the next attempt is a new call.
    """
    return f"{STEP_TOOL}-{index}.{failures + 1}" if failures else f"{STEP_TOOL}-{index}"


def _refused(
    call: StepCall, record: StepRecord, *, help_url: str, correlation_id: str
) -> StepCallResult | None:
    """Return the result of a call with a mistake of the model, which is not submitted; else ``None``."""
    if call.asked.fault is None:
        return None
    names = (record.agent_name, record.instance_key, record.turn_id)
    meta = ResultMeta(
        id=call_identity(*names, call.tool_call_id),
        agent_name=record.agent_name,
        instance_key=record.instance_key,
        turn_id=record.turn_id,
        trace_id=record.trace_id,
        span_id="0" * 16,
        correlation_id=correlation_id,
    )
    result = ToolCallResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.tool_name,
        status="error",
        error=describe(call.asked.fault, help_url=help_url),
        meta=meta,
    )
    return call.answered(result)


@dataclass(frozen=True, slots=True)
class ReplyCalls:
    """The calls in a model's reply, and the results of those refused because of the model's mistakes."""

    calls: Sequence[StepCall]
    #: in call order; ``None`` for calls to submit
    refusals: Sequence[StepCallResult | None]

    @classmethod
    def of(
        cls, calls: Sequence[StepCall], record: StepRecord, *, help_url: str, correlation_id: str
    ) -> "ReplyCalls":
        """Refuse the calls with mistakes."""
        refusals = [
            _refused(call, record, help_url=help_url, correlation_id=correlation_id) for call in calls
        ]
        return cls(calls, refusals)

    def submitted(self) -> list[StepCall]:
        """Return the calls to submit."""
        return [call for call in self.calls if call.asked.fault is None]

    def answered(self, results: Iterable[ToolCallResult]) -> list[StepCallResult]:
        """Return the results of all calls in order, given those of :meth:`submitted`."""
        answers = (call.answered(result) for call, result in zip(self.submitted(), results, strict=True))
        return [next(answers) if refusal is None else refusal for refusal in self.refusals]
