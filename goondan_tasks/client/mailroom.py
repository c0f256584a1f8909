"""The mail of agents without an entry, for the producer that is the brain of some."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.client import PubSub

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.client.held_events import HeldEvents
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.pending_call import LOOK_SECONDS
from goondan_tasks.client.received_event import ReceivedEvent
from goondan_tasks.errors import AgentHasEntryError, CallClosedError, HandoffError, ToolInputValidationError
from goondan_tasks.events import mailbox_name
from goondan_tasks.failure import describe
from goondan_tasks.ledger.claim_request import ClaimTerms, new_token
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Stored, Verdict
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.output import encoded_output
from goondan_tasks.roster import AgentRecord


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
        if self._ledger.start(claim) is Stored.LOST:
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


class MailWatch:
    """A subscription to the news of one agent's mailboxes. Methods raise ``RedisError`` as it comes."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub

    @classmethod
    @contextmanager
    def open(cls, redis: Redis, keys: Keys, agent: str) -> Iterator["MailWatch"]:
        """Subscribe; what comes from now on is not missed."""
        pubsub: PubSub = redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(keys.mail(agent))
            pubsub.get_message(timeout=1)
            yield cls(pubsub)
        finally:
            pubsub.close()

    def wait(self, seconds: float) -> None:
        """Return when there may be something, at the latest after ``seconds``."""
        self._pubsub.get_message(timeout=max(0.0, seconds))
