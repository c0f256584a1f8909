"""A client's connection: the services that its methods share, and the submission of calls to the ledger."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

from broker_config.confirmation import NotConfirmedError
from broker_config.connections import RetryPeriod, connect, redis_time, retrying
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings, SettingsError
from goondan_tasks.authoring.handoff import (
    EventFields,
    accepted,
    moment_of,
    not_answered,
    outside_call,
    request_result,
    sent,
)
from goondan_tasks.authoring.tool_api import REQUEST_TIMEOUT_MS, RequestResult, SendResult
from goondan_tasks.client.arguments import checking_arguments, require_seconds
from goondan_tasks.client.event_receiver import EventReceiver
from goondan_tasks.client.following import FOLLOWED_SECONDS, FollowTerms, TurnFollower
from goondan_tasks.client.known_agents import ActiveRefs, KnownAgents, OwnAgents, broker_errors
from goondan_tasks.client.pending_call import CallService, ExpectedCall, PendingCall
from goondan_tasks.client.stream_hub import StreamHub
from goondan_tasks.client.submitter import Submitter, producer_span
from goondan_tasks.client.threads import ClientThreads
from goondan_tasks.client.turn_events import TurnEvent
from goondan_tasks.contract.calls import CallDraft, identity_of
from goondan_tasks.contract.errors import (
    CallClosedError,
    CallNotFoundError,
    ConfigError,
    ToolCallConflictError,
    UnconfirmedError,
    WaitTimeout,
)
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCall, epoch_milliseconds, iso_time
from goondan_tasks.contract.moments import Moment
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry
from goondan_tasks.fleet.audit import AuditLog
from goondan_tasks.fleet.pauses import Pauses
from goondan_tasks.history import StepStore
from goondan_tasks.instances.housekeeping import Housekeeping
from goondan_tasks.ledger.call_filter import ids_beginning_with
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.dead_letters import DeadLetters
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.losses import with_losses
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.ledger.schedules import ScheduleStore
from goondan_tasks.ledger.submission import Submission

if TYPE_CHECKING:
    from goondan_tasks.bundle import Bundle

logger = logging.getLogger(__name__)

Given = TypeVar("Given")

#: how many calls go to Redis in one trip, which must be written within the timeout of its connection
MOST_SUBMITTED = 1_000


@checking_arguments
class ClientConnection:
    """Everything that one producer process needs. Threads may share it.

    Workers, which write their calls to the ledger themselves, use it to receive the results.
    """

    def __init__(
        self,
        settings: Settings,
        bundle: "Bundle | None" = None,
        *,
        warn: Callable[[str], object] = logger.warning,
    ) -> None:
        """Make a client that knows the agents of ``bundle``, by default of the one that the settings name.

        The latter is loaded when a name of an agent is first needed. If it is not valid, ``warn`` is called,
        and the agents are those that workers have announced.
        """
        self.settings = settings
        self._warn = warn
        patience = settings.connect_timeout_seconds
        self._redis = connect(settings.redis_url, name="goondan-client", retry_seconds=patience)
        self._ledger = Ledger(self._redis, settings)
        self._reaper = Reaper(self._ledger, settings.help_url)
        self._calls = CallService(self._ledger, self._reaper)
        self.submitter = Submitter(self._ledger, self._reaper, max_args_bytes=settings.max_args_bytes)
        self.step_store = StepStore(self._redis, self._ledger.keys, settings.result_ttl_seconds)
        self._dead_letters = DeadLetters(self._ledger)
        self._completions = Completions(self._ledger, self._reaper)
        self._agent_registry = AgentRegistry(self._redis, self._ledger.keys)
        self._audit = AuditLog(self._redis, self._ledger.keys)
        self._pauses = Pauses(self._redis, self._ledger.keys)
        self._known_agents = KnownAgents(self._agent_registry, _own_agents(settings, bundle, warn))
        self._schedule_store = ScheduleStore(self._ledger)
        self._active_refs = ActiveRefs(self._redis, self._ledger.keys)
        self._event_receiver = EventReceiver(self._ledger, self._reaper, self._known_agents)
        self.hub = StreamHub(self._redis, self._ledger.keys, lambda: self._calls.poll(""), self.broker_errors)
        self._housekeeping = Housekeeping(
            self._ledger, settings.state_root_path, lambda: self._known_agents.all().values()
        )

    @classmethod
    def connect(cls, url: str | None = None, *, bundle: Path | str | None = None) -> Self:
        """Make a client for ``url``, default ``GOONDAN_REDIS_URL``; nothing is sent yet.

        The client knows the agents of ``bundle`` (default ``GOONDAN_BUNDLE``), or without a bundle those that
        workers have announced. The bundle is loaded when a name of an agent is first needed; one that is not
        valid counts as none, with a warning in the log.

        Raises:
            ConfigError: a setting is not valid.
        """
        try:
            return cls(Settings.load(redis_url=url, bundle=bundle))
        except SettingsError as error:
            raise ConfigError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription, drop the events that were not answered, and close the connections."""
        self._event_receiver.close()
        self.hub.close()
        self._calls.listener.close()
        self.threads.close()
        self._redis.close()

    @property
    def threads(self) -> ClientThreads:
        """The threads of coroutines that make trips to Redis."""
        return self._calls.threads

    @property
    def producer(self) -> str:
        """The name under which results are sent here."""
        return self._calls.listener.producer

    def listen(self) -> None:
        with self.broker_errors():
            self._calls.listener.start()

    def expect(self, call_id: str, look: Callable[[str], str]) -> PendingCall:
        """Return a call that is about to be submitted; from now on none of its results is missed.

        A waiting thread calls ``look`` periodically, in place of :meth:`look`. An outage does not end the
        wait.
        """
        [expected] = self._calls.listener.expect([call_id])
        return ExpectedCall(call_id, expected, self._calls, look)

    def follower(self, event_id: str, begin: Callable[[], PendingCall], terms: FollowTerms) -> TurnFollower:
        """Return a follower of the Turn of an event, by its identity."""
        redis, keys = self._redis, self._ledger.keys
        return TurnFollower(redis, keys, event_id, begin, terms, broker_errors=self.broker_errors)

    def look(self, call_id: str) -> str:
        """Read a call's status, and hand over its result if there is one.

        Raises:
            CallNotFoundError: the call is unknown, has expired, or cannot be read by this version.
        """
        return self._calls.look(call_id)

    def give_up(self, call_id: str, error: Exception) -> None:
        """Raise ``error`` in all threads and tasks that wait for a call."""
        self._calls.listener.fail(call_id, error)

    def record(self, call_id: str) -> CallRecord:
        """Return the ledger's record of a call; raises as :meth:`look` does."""
        record = self._calls.record(call_id)
        with self.broker_errors():
            [found] = self._with_facts([record])
        return found

    def _with_facts(self, records: Sequence[CallRecord]) -> list[CallRecord]:
        """Add to the records what others say of the calls: whether they are lost, and what is paused."""
        found = with_losses(self._ledger, records)
        if all(record.status != "queued" for record in found):
            return found
        paused = self._pauses.read()
        pauses = [paused.of(record.call.agent_name, record.call.tool_name) for record in found]
        return [
            replace(record, paused=pause.text) if pause and record.status == "queued" else record
            for record, pause in zip(found, pauses, strict=True)
        ]

    def agents(self) -> dict[str, AgentRecord]:
        """Return the agents that can be called, by name, with their catalogs."""
        with self.broker_errors():
            return self._known_agents.all()

    def submit_drafts(
        self,
        drafts: Sequence[CallDraft],
        noting: Callable[[Sequence[str]], ScriptCall[None]] | None = None,
        *,
        is_awaited: bool = False,
    ) -> list[PendingCall]:
        """Submit calls in one trip, each with the active revision of its agent's bundle.

        ``noting`` returns what else is sent in that trip, from the ids of the calls. ``is_awaited`` says that
        this thread waits for their results next.

        Raises:
            AgentNotFoundError, PayloadTooLargeError, ToolCallConflictError: see :meth:`Client.submit`.
        """
        with self.broker_errors():
            workspaces = {
                agent: self._known_agents.require(agent).workspace
                for agent in {draft.call.agent_name for draft in drafts}
            }
            if any(draft.delay_ms for draft in drafts):
                drafts = self._at_their_times(drafts)
            named = [self._active_refs.named(draft, workspaces[draft.call.agent_name]) for draft in drafts]
            with producer_span(named) as sent:
                submissions = [self.submitter.prepare(draft) for draft in sent]
                after = [] if noting is None else [noting([submission.id for submission in submissions])]
                return self._accept(submissions, *after, is_awaited=is_awaited)

    def _at_their_times(self, drafts: Sequence[CallDraft]) -> list[CallDraft]:
        """Return calls whose delays have become times, by the clock of Redis."""
        now = redis_time(self._redis)
        return [
            draft._replace(
                call=draft.call.model_copy(update={"not_before": iso_time(math.ceil(now + draft.delay_ms))}),
                delay_ms=0,
            )
            if draft.delay_ms
            else draft
            for draft in drafts
        ]

    def submit_batches(
        self, calls: Sequence[Given], draft: Callable[[Given], CallDraft]
    ) -> list[PendingCall]:
        """Submit any number of calls, MOST_SUBMITTED in one trip; ``draft`` makes the call of each.

        Only one trip's calls are in memory at once. All are checked before the first trip, so that none is
        queued if one cannot be. Raises as :meth:`submit_drafts` does; after a conflict the others are queued.
        """
        if len(calls) > MOST_SUBMITTED:
            self._require_acceptable(map(draft, calls))
        pending: list[PendingCall] = []
        first: ToolCallConflictError | UnconfirmedError | None = None
        for begin in range(0, len(calls), MOST_SUBMITTED):
            drafts = [draft(call) for call in calls[begin : begin + MOST_SUBMITTED]]
            try:
                pending += self.submit_drafts(drafts)
            except (ToolCallConflictError, UnconfirmedError) as error:
                pending += error.calls
                first = first or error
        if first is not None:
            first.calls = tuple(pending)
            raise first
        return pending

    def _require_acceptable(self, drafts: Iterable[CallDraft]) -> None:
        known = set[str]()
        with self.broker_errors():
            for draft in drafts:
                if draft.call.agent_name not in known:
                    self._known_agents.require(draft.call.agent_name)
                    known.add(draft.call.agent_name)
                self.submitter.require_sizes(draft.call)

    def submit_event(self, call: ToolCall) -> PendingCall:
        """Submit an event; raises as :meth:`submit_drafts` does."""
        with self.broker_errors():
            self._known_agents.require(call.agent_name)
            with producer_span([CallDraft(call)]) as [sent]:
                return self._accept([self.submitter.prepare_event(sent.call)])[0]

    def submit_again(self, calls: Iterable[ToolCall]) -> list[PendingCall]:
        """Submit calls and events that were accepted before, in another Turn."""
        submissions = []
        with self.broker_errors():
            for call in calls:
                self._known_agents.require(call.agent_name)
                if is_event(call):
                    submissions.append(self.submitter.prepare_event(call))
                else:
                    submissions.append(self.submitter.prepare(CallDraft(call)))
            return self._accept(submissions)

    def forget(self, call_id: str, agent: str) -> None:
        """Delete the record and the result of a call that only this client knows."""
        with self.broker_errors():
            self._ledger.forget(call_id, agent)

    def retrying(self, timeout: float | None) -> AbstractContextManager[RetryPeriod]:
        """Retry during an outage of Redis for ``timeout`` seconds, within a ``with`` block.

        ``None`` means the default, ``GOONDAN_CONNECT_TIMEOUT_SECONDS``.
        """
        seconds = self.settings.connect_timeout_seconds if timeout is None else timeout
        require_seconds("timeout", seconds)
        return retrying(time.monotonic() + seconds)

    def broker_errors(self) -> AbstractContextManager[None]:
        """Turn errors of Redis into BrokerUnreachableError, for the length of a ``with`` block."""
        return broker_errors(self.settings.redis_url)

    # Agents: events for them, and their answers

    def request(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        is_async: bool = False,
        **fields: Unpack[EventFields],
    ) -> RequestResult:
        """Ask an agent, and wait ``timeout`` seconds for its answer; after that the agent is told to stop.

        ``input`` may be any JSON, or an :class:`AgentEvent`. With ``is_async`` it returns at once, and
        ``client.pending(answer.id)`` is the request. With ``not_before`` or ``delay``, as for
        :meth:`Client.submit`, the agent gets the event at that time, from which ``timeout`` counts. An agent
        that thinks answers with JSON that fits ``output_schema``, a JSON Schema; an agent with an entry gets
        it as ``event.output_schema``. With ``keep``, its Turn can be followed until that many seconds after
        its end (:meth:`Client.follow`).

        Raises:
            HandoffError: the agent is unknown, failed, or was too slow.
            ToolInputValidationError, PayloadTooLargeError: the request is not accepted.
            TypeError: a field that events do not have.
        """
        call, pending = self.ask(agent, input, timeout=timeout, **fields)
        if is_async:
            return accepted(call)
        try:
            return request_result(pending.result(self.patience(call, timeout)))
        except WaitTimeout as error:
            self.call_off(pending)
            raise not_answered(call, timeout) from error

    def request_stream(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        cancel_on_close: bool = True,
        **fields: Unpack[EventFields],
    ) -> Generator[TurnEvent]:
        """Ask an agent as :meth:`request` does, and yield the events of its Turn, the answer last.

        Nothing is sent before the first event is requested. Closing the iterator before the end, as ``break``
        does, cancels the Turn, unless ``cancel_on_close`` is false. The events are those of
        :mod:`goondan_tasks.client.turn_events`; an agent that does not think sends only its progress
        and the end. While it yields it raises as :meth:`request` does. Others may :meth:`follow` the Turn
        until a minute after its end, or ``keep`` seconds.
        """
        _, follower = self.following(agent, input, timeout=timeout, cancel_on_close=cancel_on_close, **fields)
        return cast(Generator[TurnEvent], follower.events())

    def following(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float,
        cancel_on_close: bool = True,
        **fields: Unpack[EventFields],
    ) -> tuple[ToolCall, TurnFollower]:
        """Return a request, and a follower that submits it when iterated; see :meth:`request_stream`."""
        if fields.get("keep") is None:
            fields["keep"] = FOLLOWED_SECONDS
        call = self._event_call(agent, input, fields, is_request=True, timeout=timeout)

        def begin() -> PendingCall:
            with self.retrying(timeout):
                return self.submit_event(call)

        patience, late = self.patience(call, timeout), not_answered(call, timeout)
        terms = FollowTerms(patience, late, cancel_on_close=cancel_on_close)
        return call, self.follower(identity_of(call), begin, terms)

    def ask(
        self, agent: str, input: Any = None, *, timeout: float, **fields: Unpack[EventFields]
    ) -> tuple[ToolCall, PendingCall]:
        """Ask an agent, and return the request and its pending call; raises as :meth:`request` does."""
        with self.retrying(timeout):
            call = self._event_call(agent, input, fields, is_request=True, timeout=timeout)
            return call, self.submit_event(call)

    def _event_call(
        self, agent: str, input: Any, fields: EventFields, *, timeout: float | None = None, is_request: bool
    ) -> ToolCall:
        """Return the call of an event; its delay counts from now, by the clock of Redis."""
        if fields.get("delay") is not None:
            fields = {**fields, "delay": None, "not_before": self.time_of(moment_of(fields))}
        return outside_call(self.settings, agent, input, fields, is_request=is_request, timeout=timeout)

    def time_of(self, moment: Moment) -> str | None:
        """Return the time before which it must not run; a delay counts from now, by the clock of Redis."""
        if not moment.delay_ms:
            return moment.not_before
        with self.broker_errors():
            return moment.at(redis_time(self._redis))

    def patience(self, call: ToolCall, timeout: float) -> float:
        """Return how long to wait for the answer to a request, in seconds: its timeout from its time on."""
        if call.not_before is None:
            return timeout
        with self.broker_errors():
            return timeout + max(0.0, epoch_milliseconds(call.not_before) - redis_time(self._redis)) / 1000

    def cancel_open(self, call_id: str) -> bool:
        """Cancel a call by its id; return whether it was open."""
        try:
            with self.broker_errors():
                self._reaper.cancel(call_id, "producer")
        except (CallClosedError, CallNotFoundError):
            return False
        return True

    def call_off(self, pending: PendingCall) -> None:
        """Cancel a request, unless it has ended."""
        with contextlib.suppress(CallClosedError, CallNotFoundError):
            pending.cancel()

    def send(self, agent: str, input: Any = None, **fields: Unpack[EventFields]) -> SendResult:
        """Send an agent an event that it does not answer; raises as :meth:`request` does.

        With ``not_before`` or ``delay`` it takes its place in the agent's mailbox at that time. ``keep`` is
        as for :meth:`request`.

        Raises:
            ToolCallConflictError: the instance has an event with this ``event_id`` and other content.
        """
        call = self._event_call(agent, input, fields, is_request=False)
        self.submit_event(call)
        return sent(call)

    def _accept(
        self, submissions: list[Submission], *after: ScriptCall[Any], is_awaited: bool = False
    ) -> list[PendingCall]:
        self._calls.listener.start()
        # results are expected before the calls are queued: they may arrive at once
        pending = self._calls.pending([submission.id for submission in submissions])
        glance = partial(self._calls.glance, pending[0]) if is_awaited else None
        try:
            looked_for, conflicts = self.submitter.accept(
                submissions, self.producer, *after, meanwhile=glance
            )
        except NotConfirmedError as error:
            raise _unconfirmed(pending, error) from error
        for at in looked_for:
            pending[at].was_known = True
            try:
                self._calls.look(pending[at].id)
            except CallNotFoundError as error:  # the others are accepted
                self._calls.listener.fail(pending[at].id, error)
        for at, conflict in conflicts.items():
            pending[at] = self._calls.refused(pending[at].id, conflict)
        if conflicts:
            first = next(iter(conflicts.values()))
            first.calls = tuple(pending)
            raise first
        return pending

    def ids_beginning_with(self, text: str) -> list[str]:
        """Return the ids of all calls that are kept and begin with ``text``."""
        with self.broker_errors():
            return ids_beginning_with(self._ledger, text, self._agents_of(None))

    def _agents_of(self, agent: str | None) -> list[str]:
        return [agent] if agent else list(self.agents())


def _own_agents(
    settings: Settings, bundle: "Bundle | None", warn: Callable[[str], object]
) -> Callable[[], OwnAgents]:
    if bundle is not None:
        own = OwnAgents.of(bundle, settings)
        return lambda: own
    path = settings.bundle
    return OwnAgents if path is None else lambda: OwnAgents.load(path, settings, warn)


def _unconfirmed(pending: Sequence[PendingCall], error: NotConfirmedError) -> UnconfirmedError:
    what = f"Call {pending[0].id}" if len(pending) == 1 else f"{len(pending)} calls, from {pending[0].id} on,"
    unconfirmed = UnconfirmedError(
        f"{what} {'was' if len(pending) == 1 else 'were'} accepted, but {error}: a failover now may lose it."
    )
    unconfirmed.calls = tuple(pending)
    return unconfirmed
