"""What agents say to each other: AgentEvent, and the IpcMessage that carries it (001 §12.6.2, DESIGN §4)."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from goondan_tasks.messages import (
    LONGEST_INSTANCE_KEY,
    LONGEST_RUN_SECONDS,
    InstanceKey,
    JsonObject,
    Versioned,
    WireModel,
    epoch_milliseconds,
)


def _require_time(text: str) -> str:
    epoch_milliseconds(text)
    return text


#: where the metadata of an event says that it is an answer
ANSWER_METADATA = "__goondanInterAgentResponse"


class EventSource(WireModel):
    """Who made an event: an agent, or whatever connects the swarm with the outside."""

    kind: Literal["agent", "connector"]
    name: str


class ReplyTo(WireModel):
    """Who waits for the answer to an event, and under which correlationId."""

    target: str
    correlation_id: str


class AgentEvent(WireModel):
    """Something that an agent is to deal with: a task, an answer, a message from outside."""

    id: str
    type: str
    created_at: str
    trace_id: str | None = None
    metadata: JsonObject = Field(default_factory=dict)
    input: Any = None
    #: the instance it is for; the asker's own if it is missing (DESIGN §4)
    instance_key: InstanceKey | None = None
    source: EventSource
    auth: JsonObject | None = None
    reply_to: ReplyTo | None = None


class Answer(WireModel):
    """How a request ended: the payload of a ``delegate_result``."""

    event_id: str
    status: Literal["ok", "error"]
    response: Any = None
    error: JsonObject | None = None
    #: type and metadata of the request, and when it ended
    event_type: Any = None
    metadata: Any = None
    answered_at: str | None = None


MessageType = Literal["delegate", "delegate_result", "event", "shutdown"]


class IpcMessage(Versioned):
    """One message between agents, as ``goondan.delegate``, ``delegate_result`` and ``event`` carry it.

    ``payload`` is an :class:`AgentEvent`; of a ``delegate_result``, an :class:`Answer`.
    """

    type: MessageType
    from_agent: str = Field(alias="from")
    to: str
    payload: JsonObject
    correlation_id: str | None = None
    from_instance_key: Annotated[InstanceKey, Field(max_length=LONGEST_INSTANCE_KEY)] | None = None
    to_instance_key: InstanceKey | None = None
    trace_id: str | None = None
    span_id: str | None = None
    auth: JsonObject | None = None
    origin: JsonObject | None = None
    #: the agents by whom it came to this, outermost first: items ``agent@instanceKey``
    call_chain: tuple[str, ...] = ()
    #: how many of them, counted from the last, wait for it; ``None`` for all
    waiting: Annotated[int, Field(ge=0)] | None = None
    deadline: Annotated[str, AfterValidator(_require_time)] | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=LONGEST_RUN_SECONDS)] | None = None
    turn_id: str | None = None
    #: the identities of the call or event that this one comes from, and of the first of them all
    parent_id: str | None = None
    root_id: str | None = None
    #: the span that asked for this, if one did
    parent_span_id: str | None = None
    replay_of: str | None = None
    #: the answer was waited for where the question was asked; nobody has to handle this message
    awaited: bool = False
