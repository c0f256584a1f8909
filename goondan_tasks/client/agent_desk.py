"""What a producer has to do with agents: it asks them, and it may be the brain of some."""

import time
from typing import Any, TypedDict

from broker_config.settings import Settings
from goondan_tasks.agents.events import AgentEvent
from goondan_tasks.agents.handling import mailbox_name
from goondan_tasks.agents.handoff import Asker, Handoff, handoff_call, random_id, require_timeout
from goondan_tasks.agents.mail_watch import MailWatch
from goondan_tasks.client.held_events import HeldEvents
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.net import LOOK_SECONDS
from goondan_tasks.client.received_event import ReceivedEvent
from goondan_tasks.clocks import wall_clock
from goondan_tasks.current_span import current_span
from goondan_tasks.errors import AgentHasEntryError, CallClosedError, HandoffError, ToolInputValidationError
from goondan_tasks.failure import describe
from goondan_tasks.ledger.claim_request import ClaimTerms, new_token
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import LONGEST_RUN_SECONDS, JsonObject, ToolCall, ToolCallResult
from goondan_tasks.names import OUTSIDE
from goondan_tasks.output import encoded_output
from goondan_tasks.roster import AgentRecord

DEFAULT_INSTANCE = "default"


class EventFields(TypedDict, total=False):
    """What a request or an event from outside may say beyond agent and input."""

    instance_key: str | None
    event_type: str | None
    event_id: str | None
    metadata: JsonObject | None
    auth: JsonObject | None
    origin: JsonObject | None
    correlation_id: str | None


def outside_call(
    settings: Settings,
    agent: str,
    input: Any,
    fields: EventFields,
    *,
    is_request: bool,
    timeout: float | None = None,
) -> ToolCall:
    """Return the call that asks an agent, or tells it something, from outside.

    Raises:
        ToolInputValidationError: a field is wrong.
    """
    event = input.to_wire() if isinstance(input, AgentEvent) else {"input": input}
    here = None if event.get("traceId") else current_span()
    asker = Asker(
        name=OUTSIDE,
        instance_key=fields.get("instance_key") or DEFAULT_INSTANCE,
        new_id=random_id,
        auth=fields.get("auth"),
        origin=fields.get("origin"),
        trace_id=None if here is None else here.trace_id,
    )
    correlation_id = fields.get("correlation_id")
    given = {
        "id": fields.get("event_id"),
        "type": fields.get("event_type"),
        "metadata": fields.get("metadata"),
        "instanceKey": fields.get("instance_key"),
        "replyTo": {"target": OUTSIDE, "correlationId": correlation_id} if correlation_id else None,
    }
    event |= {name: value for name, value in given.items() if value is not None}
    handoff = Handoff(
        agent,
        event,
        is_request=is_request,
        is_awaited=is_request,
        timeout_ms=None
        if timeout is None
        else require_timeout("timeout", timeout, LONGEST_RUN_SECONDS) * 1000,
    )
    return handoff_call(asker, handoff, most_hops=settings.max_handoff_depth, now_ms=wall_clock())


class Mailroom:
    """Hands the events of agents without an entry to the producer that is their brain."""

    def __init__(
        self, ledger: Ledger, settlement: Settlement, settings: Settings, *, known_agents: KnownAgents
    ) -> None:
        self._ledger = ledger
        self._settlement = settlement
        self._settings = settings
        self._known_agents = known_agents
        self._held = HeldEvents(ledger, settlement, settings.lease_seconds)

    def close(self) -> None:
        """Hold no event any more: those without an answer end as if this process had died."""
        self._held.close()

    def receive(
        self, agent: str, instance_key: str | None, timeout: float | None, *, taker: str
    ) -> ReceivedEvent | None:
        """Return the next event, under a lease that is renewed until it is answered."""
        terms = self._terms(self._known_agents.require(agent))
        box = "" if instance_key is None else mailbox_name(agent, instance_key)
        end = None if timeout is None else time.monotonic() + timeout
        token = new_token()
        with MailWatch.open(self._ledger.redis, self._ledger.keys, agent) as watch:
            while True:
                claim = self._ledger.fetch(agent, box, taker, terms=terms, token=token)
                received = None if claim is None else self._received(claim)
                rest = LOOK_SECONDS if end is None else end - time.monotonic()
                if received is not None or rest <= 0:
                    return received
                if claim is None:
                    watch.wait(min(LOOK_SECONDS, rest))
                    self._settlement.sweep(taker)
                token = new_token()

    def reply(self, received: ReceivedEvent, output: Any) -> None:
        """Answer an event.

        Raises:
            CallClosedError: nobody wants the answer any more.
            ToolOutputError: it is no JSON.
        """
        encoded_output(output, received.agent)
        self._finish(received.claim, received.claim.run.ok(output, received.started_at))

    def fail(self, received: ReceivedEvent, error: BaseException | str) -> None:
        """Answer an event with an error.

        Raises:
            CallClosedError: as :meth:`reply`.
        """
        raised = HandoffError(error) if isinstance(error, str) else error
        described = describe(raised, help_url=self._settings.help_url, default=HandoffError)
        self._finish(received.claim, received.claim.run.failed(described, received.started_at))

    def give_back(self, received: ReceivedEvent) -> None:
        """Let somebody else have an event; one that was cancelled meanwhile ends so."""
        self._held.drop(received.claim)
        self._settlement.return_event(received.claim)

    def _received(self, claim: Claim) -> ReceivedEvent | None:
        """Begin a claimed event; one that must not be handled, or cannot be read, is settled."""
        if claim.verdict is not Verdict.RUN:
            if claim.is_ours:
                self._settlement.settle(claim)
            return None
        try:
            received = ReceivedEvent.of(claim)
        except ToolInputValidationError as error:
            self._settlement.fail(claim, error)
            return None
        if not self._ledger.start(claim):
            return None
        self._held.hold(claim)
        return received

    def _finish(self, claim: Claim, result: ToolCallResult) -> None:
        self._held.drop(claim)
        if not self._settlement.finish(claim, result):
            raise CallClosedError(
                f"Nobody waits for the answer to {claim.run.id} any more: it was cancelled, "
                "is past its limit, or was taken over after its lease was lost."
            )

    def _terms(self, agent: AgentRecord) -> ClaimTerms:
        if agent.has_entry:
            raise AgentHasEntryError(
                f"Agent {agent.name!r} has an entry: its workers handle its events themselves."
            )
        return ClaimTerms(agent.idempotent, self._settings.max_attempts)
