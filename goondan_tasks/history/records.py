"""The records of Steps and Turns in Redis. Sources: 001 §12.1, 003 §1.1; DESIGN §6."""

from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog
from goondan_tasks.contract.messages import JsonObject, ToolCall, Versioned, WireModel


class StepRecord(Versioned):
    """A Step, as its producer and the workers that run its calls read it."""

    id: str
    agent_name: str
    instance_key: str
    turn_id: str
    trace_id: str
    #: counted from 0
    index: int
    #: the digest of its Tool Catalog; Steps with the same tools share it
    catalog: str
    blocks: tuple[JsonObject, ...] = ()
    #: by the name of a dynamic tool, the id of the earlier Step of the Turn that registered it
    origins: dict[str, str] = Field(default_factory=dict)
    #: the revision of the bundle for its calls; ``None`` if the workers follow none
    bundle_ref: str | None = None

    def is_of(self, call: ToolCall) -> bool:
        """Return whether a call belongs to the Turn of this Step."""
        turn = (self.agent_name, self.instance_key, self.turn_id)
        return turn == (call.agent_name, call.instance_key, call.turn_id)

    def is_of_wire(self, call: JsonObject) -> bool:
        """Return whether the call of a wire record belongs to the Turn of this Step."""
        turn = (self.agent_name, self.instance_key, self.turn_id)
        return turn == (call["agentName"], call["instanceKey"], call["turnId"])


class RecordedStep(Protocol):
    """An open Step with its record."""

    __slots__ = ()

    @property
    def record(self) -> StepRecord:
        """The record that was made when the Step opened."""

    @property
    def id(self) -> str:
        """The Step's id: the ``stepId`` of its calls."""
        return self.record.id

    @property
    def index(self) -> int:
        """The number of earlier Steps in the Turn."""
        return self.record.index

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model reads besides its messages: ``{type, data?, items?, priority?}``."""
        return self.record.blocks


class StepTool(WireModel):
    """A tool that a Step registered for the later Steps of its Turn."""

    item: CatalogItem
    step_id: str


class LeftTools(WireModel):
    """The changes of dynamic tools that a Step leaves to the next Step of its Turn, in any worker."""

    #: in addition to those that are registered for all Turns
    registered: tuple[StepTool, ...] = ()
    #: names, which may be those of tools that are registered for all Turns
    unregistered: tuple[str, ...] = ()


class StepInput(Versioned):
    """The arguments of the system tool that opens a Step."""

    index: int
    #: what the Step begins with
    message: JsonObject | None = None
    #: the previous Step of the same Turn
    previous_step_id: str | None = None


class TurnEntry(Versioned):
    """One line of a Turn's record: a Step that opened, or calls that a Step made."""

    step_id: str
    index: int
    message: JsonObject | None = None
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptStep:
    """A Step with its catalog, and its expiry in ``time.monotonic()`` seconds."""

    record: StepRecord
    catalog: ToolCatalog
    until: float
