"""The calls of one Step: from what the model has written to what it is answered."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_config import serializer
from goondan_tasks.bundle.catalog import ToolCatalog
from goondan_tasks.clocks import wall_clock
from goondan_tasks.failure import describe
from goondan_tasks.messages import JsonObject, Message, ResultMeta, ToolCallResult, call_part, iso_time
from goondan_tasks.names import STEP_TOOL, call_identity
from goondan_tasks.steps.model_calls import ModelCall, ModelReply, read_model_call, read_reply
from goondan_tasks.steps.record import StepRecord

#: fields of a message's data that hold calls beside its content
_CALLS_IN_DATA = ("tool_calls", "toolCalls")


class StepCallResult(ToolCallResult):
    """The outcome of a call, with ``message``: what the model expects back for it.

    For OpenAI that is a message of the role ``tool``, for Anthropic a ``tool_result`` block of the next user
    message, else a Message of the role ``tool`` (004).
    """

    message: JsonObject


@dataclass(frozen=True, slots=True)
class StepCall:
    """One of them: the tool's full name, and an id that no other Step of the Turn has used."""

    asked: ModelCall
    tool_name: str
    tool_call_id: str
    #: the model's message that holds it; ``None`` if that is too large to go with every call
    message: Message | None = None

    @property
    def model_call_id(self) -> str | None:
        """The model's id, if the call has another one."""
        return None if self.asked.id == self.tool_call_id else self.asked.id

    def to_wire(self) -> JsonObject:
        """Return the call as 003 §6.2 writes it, with the model's id."""
        return {"id": self.asked.id, "name": self.tool_name, "args": self.asked.args}

    def answered(self, result: ToolCallResult) -> StepCallResult:
        """Return the result with its message; it has the id that the model gave the call."""
        fields = {name: getattr(result, name) for name in ToolCallResult.model_fields}
        fields["tool_call_id"] = self.asked.id
        return StepCallResult.model_construct(**fields, message=self.asked.message(result))


@dataclass(slots=True)
class TurnCalls:
    """The ids that the calls of one Turn have used: a model repeats itself, Step after Step (DESIGN §4)."""

    _first_used: dict[str, int] = field(default_factory=dict)
    #: id -> the call that has it: the model's id, the Step's index, and which of this id in the Step it is
    _used: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def of_step(
        self, record: StepRecord, catalog: ToolCatalog, said: Any, *, max_args_bytes: int
    ) -> list[StepCall]:
        """Read what the model has said in a Step, or asked for; the same again is the same calls.

        Raises:
            ToolInputValidationError: it is no reply of a model, or something in it is no tool call.
        """
        reply = read_reply(said)
        read = [read_model_call(raw, max_args_bytes=max_args_bytes) for raw in reply.calls]
        asked = [replace(one, args=catalog.original_args(one.name, one.args)) for one in read]
        seen: Counter[str] = Counter()
        calls = [
            StepCall(one, catalog.original_name(one.name), self._unused_id(one.id, record.index, seen))
            for one in asked
        ]
        message = _message_of(reply, calls, record, most_bytes=max_args_bytes)
        return [replace(call, message=message) for call in calls]

    def _unused_id(self, model_id: str, index: int, seen: Counter[str]) -> str:
        seen[model_id] += 1
        call = (model_id, index, seen[model_id])
        own = self._first_used.setdefault(model_id, index) == index
        name = model_id if own else f"{model_id}.step-{index}"
        if name.startswith(STEP_TOOL):  # an id that the calls which open Steps may have
            name = f".{name}"
        if seen[model_id] > 1:
            name = f"{name}.{seen[model_id]}"
        while self._used.setdefault(name, call) != call:
            name = f"{name}.2"
        return name


def _message_of(
    reply: ModelReply, calls: Sequence[StepCall], record: StepRecord, *, most_bytes: int
) -> Message | None:
    """Return the model's whole message, which goes with each call.

    ``None`` if it cannot be written as JSON, or is too large: then each call has a message of its own.
    """
    if not calls:
        return None
    rest = iter(calls)
    content = [_part_of(next(rest)) if part is None else part for part in reply.parts]
    given = {} if reply.given is None else dict(reply.given)
    data = {name: value for name, value in given.get("data", {}).items() if name not in _CALLS_IN_DATA}
    message = Message(
        **{
            "id": f"msg-{record.id}-{calls[0].tool_call_id}",
            "created_at": iso_time(wall_clock()),
            **given,
            "data": {**data, "role": "assistant", "content": content},
            "source": {"type": "assistant", "stepId": record.id},
        }
    )
    try:
        size = len(serializer.encode(message.to_wire()))
    except serializer.NotJsonError:
        return None
    return message if size * len(calls) <= most_bytes else None


def _part_of(call: StepCall) -> JsonObject:
    return call_part(call.asked.id, call.tool_name, call.asked.args)


def opening_id(index: int, failures: int) -> str:
    """Return the ``toolCallId`` of the call that opens a Step; no call of a Step has such a one.

    The result of an attempt that has failed stands, so the next one is another call.
    """
    return f"{STEP_TOOL}-{index}.{failures + 1}" if failures else f"{STEP_TOOL}-{index}"


def refused(
    call: StepCall, record: StepRecord, *, help_url: str, correlation_id: str
) -> StepCallResult | None:
    """Return the result of a call that the model has got wrong so that it cannot be submitted."""
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


def in_order(
    refusals: Sequence[StepCallResult | None], answers: Iterable[StepCallResult]
) -> list[StepCallResult]:
    """Put the answers of those that were submitted between the refusals of the others, in call order."""
    submitted = iter(answers)
    return [next(submitted) if refusal is None else refusal for refusal in refusals]
