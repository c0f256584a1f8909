"""What is fixed when a Step opens, and what is kept of its Turn (001 §12.1, 003 §1.1; DESIGN §6)."""

from pydantic import Field

from goondan_tasks.bundle.catalog import CatalogItem
from goondan_tasks.messages import JsonObject, ToolCall, Versioned, WireModel


class StepRecord(Versioned):
    """A Step as its producer, and every worker that runs a call of it, reads it."""

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
    #: the ids of earlier Steps of the Turn, by the names of the tools that they have registered
    origins: dict[str, str] = Field(default_factory=dict)
    #: the revision of the bundle that its calls run with; ``None`` where revisions are not followed
    bundle_ref: str | None = None

    def is_of(self, call: ToolCall) -> bool:
        """Say whether a call belongs to the Turn of this Step."""
        theirs = (call.agent_name, call.instance_key, call.turn_id)
        return theirs == (self.agent_name, self.instance_key, self.turn_id)


class StepTool(WireModel):
    """A tool that was registered in a Step of a Turn, for the Steps after it."""

    item: CatalogItem
    step_id: str


class LeftTools(WireModel):
    """The dynamic tools that a Step leaves to the next one of its Turn, whichever worker opens that."""

    #: besides those that last
    registered: tuple[StepTool, ...] = ()
    #: the names of those that the Turn is not shown any more, lasting ones among them
    unregistered: tuple[str, ...] = ()


class StepInput(Versioned):
    """What the system's tool that opens a Step is asked for: its arguments."""

    index: int
    #: what the Step begins with
    message: JsonObject | None = None
    #: the Step before it, of the same Turn
    previous_step_id: str | None = None


class TurnEntry(Versioned):
    """One line of a Turn's record: a Step that was opened, or calls that were made in it."""

    step_id: str
    index: int
    message: JsonObject | None = None
    call_ids: tuple[str, ...] = ()
