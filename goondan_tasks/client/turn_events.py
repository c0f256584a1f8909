"""The events of a Turn for its followers, which workers write to a Redis stream.

The script that accepts an event or call with ``keep`` makes its stream, workers write to it while it exists
(``workers/thinking/turn_stream.py``, and the ``ctx.emit`` of tools in ``workers/reporters.py``), and the
script that stores the result ends it (``streams.lua``). An entry has one field, ``entries``: a list of the
wire forms of the events below. When a Turn is run again because its worker died, earlier events are written
again; followers drop the repetitions.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from goondan_tasks.authoring.handoff import answer_in
from goondan_tasks.authoring.tool_api import RequestResult
from goondan_tasks.contract.messages import EditedArguments, ToolCallError, ToolCallResult, WireModel
from goondan_tasks.contract.output import Progress


class TurnAccepted(WireModel):
    """The Turn is in the agent's mailbox. ``id`` is the request's identity, for ``goondan cancel``."""

    type: Literal["accepted"] = "accepted"
    id: str


class _Piece(WireModel):
    type: Literal["text", "reasoning"]
    #: counts the Steps of the Turn from 0
    step: int
    text: str
    #: distinguishes the answers to one Step
    answer_id: str = ""


class TextDelta(_Piece):
    """The next characters of the model's answer."""

    type: Literal["text"] = "text"


class ReasoningDelta(_Piece):
    """The next characters of the model's reasoning, if the provider sends it."""

    type: Literal["reasoning"] = "reasoning"


class AnswerRestarted(WireModel):
    """The model is asked again in this Step: its text and reasoning of the Step so far are void.

    The worker died, the stream was cut, or the answer could not be used.
    """

    type: Literal["restart"] = "restart"
    step: int
    answer_id: str = ""


class ToolCalled(WireModel):
    """The model has called a tool."""

    type: Literal["tool_call"] = "tool_call"
    step: int
    #: the model's name for the call; it may come again in another Step
    id: str
    #: the call's identity in the ledger
    call_id: str
    tool: str
    #: text if the model's arguments are not JSON
    args: Any = None


class ToolAnswered(WireModel):
    """A tool call has its result, which may be an interim one (``status`` is ``pending``)."""

    type: Literal["tool_result"] = "tool_result"
    step: int
    id: str
    call_id: str
    tool: str
    status: Literal["ok", "error", "pending"]
    output: Any = None
    error: ToolCallError | None = None
    duration_ms: float | None = None
    #: what a pending result waits for
    awaits: Literal["completion", "approval"] | None = None
    #: if a person has changed the arguments of the call
    edited: EditedArguments | None = None

    @classmethod
    def of(cls, result: ToolCallResult, step: int) -> "ToolAnswered":
        """Make the event for a result."""
        return cls(
            step=step,
            id=result.tool_call_id,
            call_id=result.meta.id,
            tool=result.tool_name,
            status=result.status,
            output=result.output,
            error=result.error,
            duration_ms=result.meta.duration_ms,
            awaits=result.meta.awaits,
            edited=result.meta.edited,
        )


class _Output(WireModel):
    type: Literal["tool_output", "tool_restart"]
    #: the call as its handler is shown it; :attr:`ToolCalled.id` in a Turn
    tool_call_id: str
    #: the call's identity in the ledger
    call_id: str
    tool: str
    #: counts the runs of the call from 1
    attempt: int
    #: counts the events of a run
    seq: int = 0


class ToolEmitted(_Output):
    """What a tool shows with ``ctx.emit`` while it runs."""

    type: Literal["tool_output"] = "tool_output"
    #: text, which goes on where the call's last text ended, or another JSON value
    chunk: Any = None
    #: whether this run has emitted too much: ``chunk`` is none, and the rest of its output is left out
    truncated: bool = False


class ToolRestarted(_Output):
    """A call runs again, because its worker died or it is tried again: its output so far is void."""

    type: Literal["tool_restart"] = "tool_restart"


class TokensUsed(WireModel):
    """A model has answered: ``usage`` has the tokens, by ``input``, ``output``, ``cached``, ``reasoning``."""

    type: Literal["usage"] = "usage"
    step: int
    usage: dict[str, int]
    #: distinguishes the requests of one Step
    request_id: str = ""


class TurnProgress(WireModel):
    """The latest ``ctx.progress`` of the agent's code."""

    type: Literal["progress"] = "progress"
    progress: Progress


class TurnEnded(WireModel):
    """The agent has answered, or the call has ended; always the last event."""

    type: Literal["end"] = "end"
    result: RequestResult
    #: why it has failed; then ``result`` has no response
    error: ToolCallError | None = None
    #: for an agent that thinks: its tokens as in :class:`TokensUsed`, and why the Turn has ended
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    duration_ms: float | None = None

    @classmethod
    def of(cls, result: ToolCallResult) -> "TurnEnded":
        """Make the event for the end."""
        meta = result.meta
        return cls(
            result=answer_in(result),
            error=result.error,
            usage=meta.usage,
            finish_reason=meta.finish_reason,
            duration_ms=meta.duration_ms,
        )


#: the events that workers write
Told = (
    TextDelta
    | ReasoningDelta
    | AnswerRestarted
    | ToolCalled
    | ToolEmitted
    | ToolRestarted
    | ToolAnswered
    | TokensUsed
)
TurnEvent = TurnAccepted | Told | TurnProgress | TurnEnded

TOLD: TypeAdapter[Told] = TypeAdapter(
    Annotated[Told, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)
_KINDS: dict[str, type[TextDelta] | type[ReasoningDelta]] = {"text": TextDelta, "reasoning": ReasoningDelta}


class WholeAnswer(WireModel):
    """All pieces of the last answer to a Step, in the stream of what has ended (``streams.lua``)."""

    type: Literal["answer"] = "answer"
    step: int
    answer_id: str
    #: the id of the first entry about an answer to the Step
    since: str = Field(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")
    #: how many events the last entry had; this one has its id
    count: int
    #: the answers to the Step before this one; a worker that was frozen may add to them after the end
    void: tuple[str, ...] = ()
    #: kinds and texts
    pieces: tuple[tuple[Literal["text", "reasoning"], str], ...] = ()


class EventFilter:
    """Drops repeated events, and pieces of answers that are void."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, ...]] = set()
        #: by Step: the current answer, and how many of its characters were passed on
        self._answers: dict[int, tuple[str, int]] = {}
        self._void: set[str] = set()
        #: by call: the run and the number of its last output, and whether any was since the last restart
        self._outputs: dict[str, tuple[int, int, bool]] = {}

    def passed(self, told: Told) -> Iterator[TurnEvent]:
        """Yield the event if it is new to the client, and a restart before a new answer's first piece."""
        if isinstance(told, _Piece | AnswerRestarted):
            if told.answer_id in self._void:
                return
            text = told.text if isinstance(told, _Piece) else ""
            restart, length = self._begun(told.step, told.answer_id)
            self._answers[told.step] = told.answer_id, length + len(text)
            if restart is not None:
                yield told if isinstance(told, AnswerRestarted) else restart
            if isinstance(told, _Piece):
                yield told
        elif isinstance(told, _Output):
            yield from self._emitted(told)
        elif (mark := _mark(told)) not in self._seen:
            self._seen.add(mark)
            yield told

    def _emitted(self, told: ToolEmitted | ToolRestarted) -> Iterator[TurnEvent]:
        """Yield what a tool shows, after a restart if another run of the call has shown something."""
        attempt, seq, has_output = self._outputs.get(told.call_id, (told.attempt, -1, False))
        if (told.attempt, told.seq) <= (attempt, seq):
            return  # repeated, or of a run that has lost its call
        is_output = isinstance(told, ToolEmitted)
        self._outputs[told.call_id] = told.attempt, told.seq, is_output
        if has_output and not is_output:
            yield told
        elif has_output and told.attempt > attempt:
            fields = {name: getattr(told, name) for name in _Output.model_fields if name != "type"}
            yield ToolRestarted(**fields)
        if is_output:
            yield told

    def knows(self, step: int) -> bool:
        """Return whether there was an answer to a Step."""
        return step in self._answers

    def whole(self, answer: WholeAnswer) -> Iterator[TurnEvent]:
        """Yield what is new to the client of an answer that is complete."""
        restart, length = self._begun(answer.step, answer.answer_id)
        self._void.update(answer.void)
        if restart is not None:
            yield restart
        self._answers[answer.step] = answer.answer_id, sum(len(text) for _, text in answer.pieces)
        for kind, text in answer.pieces:
            rest, length = text[length:], max(0, length - len(text))
            if rest:
                yield _KINDS[kind](step=answer.step, text=rest, answer_id=answer.answer_id)

    def _begun(self, step: int, answer_id: str) -> tuple[AnswerRestarted | None, int]:
        """Return the restart if another answer was passed on, and the length of what was of this one."""
        before, length = self._answers.get(step, (answer_id, 0))
        if before == answer_id:
            return None, length
        self._void.add(before)
        return AnswerRestarted(step=step, answer_id=answer_id) if length else None, 0


def _mark(told: ToolCalled | ToolAnswered | TokensUsed) -> tuple[str, ...]:
    """Return the key that distinguishes an event from all others of its Turn."""
    if isinstance(told, TokensUsed):
        return told.type, str(told.step), told.request_id
    return told.type, told.call_id, getattr(told, "status", "")
