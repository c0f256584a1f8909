"""Receiving the events of agents without an entry: this producer handles them."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from broker_config.confirmation import NotConfirmedError
from broker_config.keys import Keys
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.pending_call import LOOK_SECONDS
from goondan_tasks.contract.errors import (
    AgentHasEntryError,
    BrokerUnreachableError,
    CallClosedError,
    GoondanError,
    HandoffError,
    HandoffTimeoutError,
    ToolCancelledError,
    ToolInputValidationError,
)
from goondan_tasks.contract.events import event_of, handling_agent, mailbox_name
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import AgentEvent, JsonObject, ToolCallResult
from goondan_tasks.contract.output import encoded_output
from goondan_tasks.contract.wording import shown
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.ledger.claim_request import ClaimTerms, new_token
from goondan_tasks.ledger.leases import LeaseKeeper
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored, Verdict

logger = logging.getLogger(__name__)

#: how soon a received event ends after it was cancelled, or after its limit
END_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A received event, to be answered with ``reply`` or ``fail``."""

    #: the event's identity in the ledger: `goondan result ID` shows its state
    id: str
    agent: str
    instance_key: str
    turn_id: str
    correlation_id: str
    trace_id: str
    event: AgentEvent
    #: the Turn's, for the calls that it makes
    auth: JsonObject | None
    origin: JsonObject | None
    #: 1 for the first time that the event is received
    attempt: int
    claim: Claim = field(repr=False)
    #: ms, when it was received
    started_at: float = field(repr=False)

    @property
    def input(self) -> Any:
        """The event's input."""
        return self.event.input

    @classmethod
    def of(cls, claim: Claim) -> "ReceivedEvent":
        """Read a claimed event.

        Raises:
            ToolInputValidationError: it is not an event.
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


class EventReceiver:
    """Claims events of agents without an entry, and stores the answers to them."""

    def __init__(self, ledger: Ledger, reaper: Reaper, known_agents: KnownAgents) -> None:
        self._ledger = ledger
        self._reaper = reaper
        self._known_agents = known_agents
        self._leases = EventLeases(ledger, reaper, ledger.settings.lease_seconds)

    def close(self) -> None:
        """Stop renewing leases: unanswered events end as if this process had died."""
        self._leases.close()

    def receive(
        self, agent: str, instance_key: str | None, timeout: float | None, *, taker: str
    ) -> ReceivedEvent | None:
        """Return the next event, under a lease that is renewed until the event is answered."""
        terms = self._terms(self._known_agents.require(agent))
        box = "" if instance_key is None else mailbox_name(agent, instance_key)
        end = None if timeout is None else time.monotonic() + timeout
        token = new_token()
        with mail_news(self._ledger.redis, self._ledger.keys, agent) as news:
            while True:
                fetch = self._ledger.fetch(agent, box, taker, terms=terms, token=token)
                claim = fetch.run(self._ledger.redis)
                received = None if claim is None else self._received(claim)
                rest = LOOK_SECONDS if end is None else end - time.monotonic()
                if received is not None or rest <= 0:
                    return received
                if claim is None:
                    news.get_message(timeout=min(LOOK_SECONDS, rest))
                    self._reaper.sweep(taker)
                token = new_token()

    def reply(self, received: ReceivedEvent, output: Any) -> None:
        """Answer an event.

        Raises:
            CallClosedError: the event has ended: cancelled, past its limit, or taken over.
            ToolOutputError: the output is not JSON.
        """
        _require_received(received)
        answer = encoded_output(output, received.agent).output
        self._finish(received.claim, received.claim.run.ok(answer, received.started_at))

    def fail(self, received: ReceivedEvent, error: BaseException | str) -> None:
        """Answer an event with an error.

        Raises:
            CallClosedError: as :meth:`reply`.
        """
        _require_received(received)
        raised = HandoffError(error) if isinstance(error, str) else error
        described = describe(raised, help_url=self._ledger.settings.help_url, default=HandoffError)
        self._finish(received.claim, received.claim.run.failed(described, received.started_at))

    def give_back(self, received: ReceivedEvent) -> None:
        """Put an event back at the head of its mailbox; if it was cancelled meanwhile, it ends."""
        _require_received(received)
        self._leases.drop(received.claim)
        self._reaper.return_event(received.claim)

    def _received(self, claim: Claim) -> ReceivedEvent | None:
        """Start a claimed event; if it must not be handled, or cannot be read, settle it."""
        if claim.verdict is not Verdict.RUN:
            if claim.is_ours:
                self._reaper.settle(claim)
            return None
        try:
            received = ReceivedEvent.of(claim)
        except ToolInputValidationError as error:
            self._reaper.fail(claim, error)
            return None
        try:
            [marked] = self._ledger.start([claim.id_and_token]).run(self._ledger.redis)
        except NotConfirmedError:
            self._reaper.return_event(claim)  # it is not handled before replicas know that it has begun
            raise
        if marked in (Stored.LOST, Stored.DAMAGED):
            return None
        self._leases.hold(claim)
        return received

    def _finish(self, claim: Claim, result: ToolCallResult) -> None:
        self._leases.drop(claim)
        if not self._reaper.finish(claim, result):
            raise CallClosedError(
                f"Event {claim.run.id} takes no answer any more: it was cancelled, "
                "is past its limit, was taken over after its lease was lost, or its record is damaged."
            )

    def _terms(self, agent: AgentRecord) -> ClaimTerms:
        if agent.has_entry:
            raise AgentHasEntryError(
                f"Agent {agent.name!r} has an entry: its workers handle its events themselves."
            )
        return ClaimTerms(agent.idempotent, self._ledger.settings.max_attempts)


@contextmanager
def mail_news(redis: Redis, keys: Keys, agent: str) -> Iterator[PubSub]:
    """Subscribe to changes of an agent's mailboxes; no message published within the block is missed.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    pubsub: PubSub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    try:
        pubsub.subscribe(keys.mail(agent))
        pubsub.get_message(timeout=1)
        yield pubsub
    finally:
        pubsub.close()


@dataclass(frozen=True, slots=True)
class _Held:
    """A received event, and when it must have its answer (``time.monotonic()``)."""

    claim: Claim
    ends_at: float | None


class EventLeases:
    """Renews the leases of received events, and ends those that are cancelled or past their limit."""

    def __init__(self, ledger: Ledger, reaper: Reaper, lease_seconds: float) -> None:
        self._ledger = ledger
        self._reaper = reaper
        self._leases = LeaseKeeper(ledger, lease_seconds, on_lost=self.drop)
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, claim: Claim) -> None:
        """Renew an event's lease until the event is dropped; its limit counts from now."""
        limit = claim.run.call.timeout_seconds
        ends_at = None if limit is None else time.monotonic() + limit
        with self._lock:
            self._held[claim.run.id] = _Held(claim, ends_at)
            if self._thread is None:
                # the process belongs to the producer: unlike a worker it must not stop if this thread dies
                threading.Thread(target=self._leases.keep, name="goondan-leases", daemon=True).start()
                self._thread = threading.Thread(target=self._watch, name="goondan-held-events", daemon=True)
                self._thread.start()
        self._leases.hold(claim)

    def drop(self, claim: Claim) -> None:
        """Stop renewing an event's lease; a newer claim of the event stays."""
        with self._lock:
            held = self._held.get(claim.run.id)
            if held is not None and held.claim.token == claim.token:
                del self._held[claim.run.id]
        self._leases.drop(claim)

    def close(self) -> None:
        """Stop renewing leases."""
        self._stopped.set()
        self._leases.stop()

    def _watch(self) -> None:
        while not self._stopped.wait(END_SECONDS):
            with self._lock:
                held = dict(self._held)
            if held:
                try:
                    self._end_due(held)
                except (RedisError, BrokerUnreachableError) as error:
                    logger.warning("received events are not checked for cancels and limits: %s", error)

    def _end_due(self, held: dict[str, _Held]) -> None:
        cancelled = self._ledger.cancelled_ids(list(held)).run(self._ledger.redis)
        for call_id, one in held.items():
            error = _end_of(one, is_cancelled=call_id in cancelled)
            if error is not None:
                self._reaper.fail(one.claim, error)  # if Redis fails, the event stays held and ends later
                self.drop(one.claim)


def _end_of(held: _Held, *, is_cancelled: bool) -> GoondanError | None:
    if is_cancelled:
        return ToolCancelledError()
    if held.ends_at is not None and time.monotonic() > held.ends_at:
        call = held.claim.run.call
        return HandoffTimeoutError(
            f"{handling_agent(call)} did not finish within {call.timeout_seconds:g} s."
        )
    return None


def _require_received(received: object) -> None:
    if not isinstance(received, ReceivedEvent):
        raise ToolInputValidationError(
            f"It takes an event that receive() has returned, not {shown(received)}."
        )
