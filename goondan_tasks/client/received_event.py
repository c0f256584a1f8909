"""An event in the hands of a producer that is an agent's brain."""

from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.events import event_of
from goondan_tasks.ledger.record import Claim
from goondan_tasks.messages import AgentEvent, JsonObject


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """What ``Client.receive`` hands out; it is to be answered with ``reply`` or ``fail``."""

    #: the event's identity in the ledger: `goondan result ID` shows what became of it
    id: str
    agent: str
    instance_key: str
    turn_id: str
    correlation_id: str
    trace_id: str
    event: AgentEvent
    #: the Turn's, to be given to the calls that it makes
    auth: JsonObject | None
    origin: JsonObject | None
    #: 1 for the first time it is handed out
    attempt: int
    claim: Claim = field(repr=False)
    #: ms, when it was handed out
    started_at: float = field(repr=False)

    @property
    def input(self) -> Any:
        """What the agent is to know."""
        return self.event.input

    @classmethod
    def of(cls, claim: Claim) -> "ReceivedEvent":
        """Read what the ledger handed out.

        Raises:
            ToolInputValidationError: it is no event.
        """
        run, call = claim.run, claim.run.call
        return cls(
            id=run.id,
            agent=call.agent_name,
            instance_key=call.instance_key,
            turn_id=call.turn_id,
            correlation_id=call.correlation_id,
            trace_id=call.trace_id,
            event=event_of(call, run.clock()),
            auth=call.auth,
            origin=call.origin,
            attempt=run.attempt,
            claim=claim,
            started_at=run.clock(),
        )
