"""The client of a producer process."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, Unpack

from redis.exceptions import RedisError

from broker_config.connections import connect, reason_unreachable
from broker_config.settings import Settings, SettingsError
from goondan_tasks.agents.outcome import accepted, not_answered, request_result
from goondan_tasks.agents.received_event import ReceivedEvent
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.client.agent_desk import EventFields, Mailroom, outside_call
from goondan_tasks.client.agent_status import AgentStatus, read_agents
from goondan_tasks.client.call_output import CallOutput, OutputPart
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.pending_call import LOOK_SECONDS, CallActions, PendingCall
from goondan_tasks.client.queue_status import QueueStatus, read_queues
from goondan_tasks.client.replay import replay_of, require_replayable
from goondan_tasks.client.result_listener import ResultListener
from goondan_tasks.client.submitter import Submitter
from goondan_tasks.client.sweeper import Sweeper
from goondan_tasks.dispatch import dispatch_for
from goondan_tasks.errors import (
    BrokerUnreachableError,
    CallClosedError,
    CallNotFoundError,
    ConfigError,
    NoOutputError,
    WaitTimeout,
)
from goondan_tasks.ledger.dead_letters import DeadLetters, LetterFilter, batches
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.new_call import CallFields, Draft, draft_call, identity_of, require_call_fields
from goondan_tasks.roster import AgentRecord, Roster, WorkerRecord, describe_agents
from goondan_tasks.runtime_api import REQUEST_TIMEOUT_MS, RequestResult, SendResult
from goondan_tasks.shutdown import ShutdownRequest, ShutdownRequests

#: the longest id of a call, in bytes
LONGEST_ID = 200


class Client:
    """Submits tool calls to agents' queues and receives their results. Threads may share it.

    It raises only for an unknown agent, a payload too large, a conflict or an unreachable broker;
    everything else that goes wrong with a call is its result.
    """

    def __init__(self, settings: Settings, bundle: Bundle | None = None) -> None:
        self.settings = settings
        self._redis = connect(settings.redis_url, name="goondan-client")
        self._ledger = Ledger(self._redis, settings)
        dispatch = dispatch_for(settings)
        self._settlement = Settlement(self._ledger, dispatch, settings.help_url)
        self._sweeper = Sweeper(lambda: self._settlement.sweep("producer"), LOOK_SECONDS)
        self.submitter = Submitter(
            self._ledger, dispatch, self._settlement, max_args_bytes=settings.max_args_bytes
        )
        self._dead_letters = DeadLetters(self._ledger)
        self._listener = ResultListener(self._redis, self._ledger.keys, self._ledger.result)
        self._actions = CallActions(self._listener.future, self._look, self.cancel, self.record)
        self._roster = Roster(self._redis, self._ledger.keys)
        own = describe_agents(bundle, settings.swarm, settings.workspace) if bundle else ()
        self._known_agents = KnownAgents(self._roster, own)
        self._mailroom = Mailroom(self._ledger, self._settlement, settings, known_agents=self._known_agents)

    @classmethod
    def connect(cls, url: str | None = None, *, bundle: Path | str | None = None) -> Self:
        """Make a client of ``url``, default ``GOONDAN_REDIS_URL``; nothing is sent yet.

        ``bundle`` (default ``GOONDAN_BUNDLE``) tells which agents there are; without one, the
        agents that workers have announced are known.

        Raises:
            ConfigError: a setting or the bundle is not valid.
        """
        try:
            settings = Settings.load(redis_url=url, bundle=bundle)
        except SettingsError as error:
            raise ConfigError(str(error)) from error
        return cls(settings, load_bundle(settings.bundle) if settings.bundle else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription and close the connections."""
        self._listener.close()
        self._redis.close()

    def submit(self, agent: str, tool: str, args: Any = None, **fields: Unpack[CallFields]) -> PendingCall:
        """Queue a call and return at once. The same identity again is the same call.

        Raises:
            AgentNotFoundError: no such agent.
            PayloadTooLargeError: the arguments exceed ``MAX_ARGS_BYTES``.
            ToolCallConflictError: the identity was submitted with other arguments.
            BrokerUnreachableError: Redis or the broker cannot be reached, or refuses the call.
            TypeError: a field that calls do not have.
        """
        require_call_fields(fields)
        wire = {**fields, "agentName": agent, "toolName": tool, "args": args}
        return self._submit([draft_call(wire)])[0]

    def submit_many(self, calls: Iterable[ToolCall | Mapping[str, Any]]) -> list[PendingCall]:
        """Queue many calls in one trip; dicts of wire fields are completed as by :meth:`submit`."""
        return self._submit(
            [Draft(call) if isinstance(call, ToolCall) else draft_call(call) for call in calls]
        )

    def call(
        self,
        agent: str,
        tool: str,
        args: Any = None,
        *,
        timeout: float | None = None,
        **fields: Unpack[CallFields],
    ) -> ToolCallResult:
        """Submit, and wait ``timeout`` seconds for the result; raises as both do."""
        return self.submit(agent, tool, args, **fields).result(timeout)

    def pending(self, call_id: str) -> PendingCall:
        """Return a call that was submitted before, here or elsewhere.

        Raises:
            CallNotFoundError: unknown, expired, or of a version that this one cannot read.
            BrokerUnreachableError: Redis cannot be reached.
        """
        _require_possible(call_id)
        call = self._pending(call_id)
        call.status()
        return call

    def record(self, call_id: str) -> CallRecord:
        """Return the ledger's record of a call; raises as :meth:`pending` does."""
        _require_possible(call_id)
        with self._broker_errors():
            record = self._ledger.record(call_id)
        if record is None:
            raise _not_found(call_id)
        return record

    def output(self, call_id: str) -> CallOutput:
        """Return the output of a call that ended well, to be read in parts with a waiting of one's own.

        Raises:
            NoOutputError: it has not ended yet, or not well.
            CallNotFoundError, BrokerUnreachableError: as :meth:`pending`.
        """
        pending = self.pending(call_id)
        try:
            return CallOutput(pending.result(0), submit=self.submit, forget=self._forget)
        except WaitTimeout as error:
            raise NoOutputError(f"Call {call_id} has no output yet: it is {pending.status()}.") from error

    def read_output(
        self, call_id: str, offset: int = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> OutputPart:
        """Read a part of a call's output, which is JSON text in UTF-8; ``next_offset`` leads to the next.

        A large output stands in a file of the workdir, and a worker of the call's agent is asked for the
        part; it decides how much of ``limit`` bytes it sends at once.

        Raises:
            NoOutputError, CallNotFoundError, BrokerUnreachableError: as :meth:`output`.
            ToolInputValidationError: ``offset`` is past the end.
            OutputGoneError: the file is not there any more.
            WaitTimeout: no worker has answered within ``timeout`` seconds.
        """
        output = self.output(call_id)
        return output.read(offset, limit, wait=lambda asked: asked.result(timeout))

    @property
    def producer(self) -> str:
        """The name under which results are sent here."""
        return self._listener.producer

    def listen(self) -> None:
        """Subscribe to results.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            self._listener.start()

    def expect(self, call_id: str) -> PendingCall:
        """Return a call that is about to be submitted: no result of it is missed from now on."""
        return self._pending(call_id)

    def give_up(self, call_id: str, error: Exception) -> None:
        """Let whoever waits for a call be told ``error``."""
        self._listener.fail(call_id, error)

    def send_messages(self, unsent: Mapping[str, bytes]) -> None:
        """Send messages of calls, by id, that the ledger has and could not push.

        Raises:
            BrokerUnreachableError: the broker cannot be reached.
        """
        self._settlement.send(unsent)

    def cancel(self, call_id: str) -> None:
        """Cancel a call, submitted here or elsewhere; see :meth:`PendingCall.cancel`.

        Raises:
            CallClosedError: it has its final result already.
            CallNotFoundError: as :meth:`pending`.
            BrokerUnreachableError: Redis cannot be reached.
        """
        _require_possible(call_id)
        with self._broker_errors():
            self._settlement.cancel(call_id, "producer")

    def request(
        self,
        agent: str,
        input: Any = None,
        *,
        timeout: float = REQUEST_TIMEOUT_MS / 1000,
        is_async: bool = False,
        **fields: Unpack[EventFields],
    ) -> RequestResult:
        """Ask an agent, and wait ``timeout`` seconds for its answer; past them it is told to stop.

        ``input`` may be any JSON, or an :class:`AgentEvent`. With ``is_async`` it returns at once, and
        ``client.pending(answer.correlation_id)`` is the request.

        Raises:
            HandoffError: the agent is unknown, failed, or was too slow.
            ToolInputValidationError, PayloadTooLargeError: the request is not accepted.
            BrokerUnreachableError: Redis or the broker cannot be reached.
        """
        call = outside_call(self.settings, agent, input, fields, is_request=True, timeout=timeout)
        pending = self._hand_over(call)
        if is_async:
            return accepted(call)
        try:
            return request_result(call, pending.result(timeout))
        except WaitTimeout as error:
            self._call_off(pending)
            raise not_answered(call, timeout) from error

    def send(self, agent: str, input: Any = None, **fields: Unpack[EventFields]) -> SendResult:
        """Give an agent an event that it does not answer; raises as :meth:`request` does."""
        call = outside_call(self.settings, agent, input, fields, is_request=False)
        self._hand_over(call)
        return SendResult(event_id=call.tool_call_id, target=agent, accepted=True)

    def receive(
        self, agent: str, instance_key: str | None = None, timeout: float | None = None
    ) -> ReceivedEvent | None:
        """Return the next event of an agent without an entry, for its brain: this producer.

        The event is this producer's, under a lease that is renewed, until :meth:`reply` or :meth:`fail`
        is called; the instance's other events wait. ``None`` after ``timeout`` seconds without one.

        Raises:
            AgentNotFoundError: no such agent.
            AgentHasEntryError: its workers handle its events.
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            return self._mailroom.receive(agent, instance_key, timeout, taker=f"producer-{self.producer}")

    def reply(self, received: ReceivedEvent, output: Any = None) -> None:
        """Answer an event with any JSON.

        Raises:
            CallClosedError: nobody wants the answer any more.
            ToolOutputError: it is no JSON.
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            self._mailroom.reply(received, output)

    def fail(self, received: ReceivedEvent, error: BaseException | str) -> None:
        """Answer an event with an error, as if an entry had raised it; raises as :meth:`reply` does."""
        with self._broker_errors():
            self._mailroom.fail(received, error)

    def calls(self, agent: str | None = None, limit: int = 50) -> list[CallRecord]:
        """Return the most recent calls, of one agent or of all, the newest first.

        What this version cannot read is left out, and logged.
        """
        with self._broker_errors():
            return self._ledger.recent(self._agents_of(agent), limit)

    def dead_letters(
        self, agent: str | None = None, limit: int | None = 50, **wanted: Unpack[LetterFilter]
    ) -> list[CallRecord]:
        """Return the calls whose every run killed its worker, of one agent or of all, the latest first."""
        with self._broker_errors():
            found = self._dead_letters.find(self._agents_of(agent), **wanted)
            return list(itertools.islice(found, limit))

    def dead_letter(self, call_id: str) -> CallRecord:
        """Return one dead letter.

        Raises:
            CallNotFoundError: there is no such call, or it is no dead letter.
            BrokerUnreachableError: Redis cannot be reached.
        """
        record = self.record(call_id)
        with self._broker_errors():
            if not self._dead_letters.has(record):
                raise _no_letter(call_id, f"it is {record.outcome or record.status}, or was dropped")
        return record

    def replay(self, call_id: str, *, again: bool = False) -> PendingCall:
        """Run a call again that has ended with an error, a dead letter or not, as a new call.

        The old one keeps its result and is marked as replayed: a second replay is refused, unless
        ``again`` says so. The new one's result names the old in ``meta.replay_of``.

        Raises:
            NotReplayableError: it has not ended, has ended well, was refused, or was replayed before.
            CallNotFoundError: there is no such call.
            AgentNotFoundError, PayloadTooLargeError, BrokerUnreachableError: as :meth:`submit`.
        """
        record = self.record(call_id)
        with self._broker_errors():
            result = self._result(call_id)
        require_replayable(record, result, again=again)
        return self._replay([record])[call_id]

    def replay_all(self, agent: str | None = None, **wanted: Unpack[LetterFilter]) -> dict[str, PendingCall]:
        """Replay the dead letters that were not yet replayed; return the new calls by the old ones' ids.

        Raises as :meth:`replay`; what was replayed before is marked as such.
        """
        letters = [letter for letter in self.dead_letters(agent, None, **wanted) if not letter.replayed_by]
        return {old: new for batch in batches(letters) for old, new in self._replay(batch).items()}

    def drop(self, call_id: str) -> None:
        """Let a call be no dead letter any more; its record and its result stay until their time.

        Raises:
            CallNotFoundError: there is no such dead letter.
        """
        _require_possible(call_id)
        with self._broker_errors():
            record = self._ledger.record(call_id)
            agents = [*self.agents(), *([record.call.agent_name] if record else [])]
            if not self._dead_letters.remove([call_id], agents):
                raise _no_letter(call_id, f"it is {record.status}" if record else "it is unknown or expired")

    def drop_all(self, agent: str | None = None, **wanted: Unpack[LetterFilter]) -> int:
        """Drop dead letters, replayed or not; return how many."""
        letters = self.dead_letters(agent, None, **wanted)
        with self._broker_errors():
            return self._dead_letters.remove([letter.id for letter in letters], self._agents_of(agent))

    def agents(self) -> dict[str, AgentRecord]:
        """Return the agents that can be called, by name, with their catalogs."""
        with self._broker_errors():
            return self._known_agents.all()

    def catalog(self, agent: str) -> tuple[JsonObject, ...]:
        """Return an agent's Tool Catalog: ToolCatalogItems (003 §11).

        Raises:
            AgentNotFoundError: no such agent.
        """
        with self._broker_errors():
            return self._known_agents.require(agent).catalog

    def workers(self) -> list[WorkerRecord]:
        """Return the worker processes that are alive."""
        with self._broker_errors():
            return self._roster.workers()

    def queues(self) -> list[QueueStatus]:
        """Return how every agent's queue stands."""
        with self._broker_errors():
            agents, workers = self._known_agents.all(), self._roster.workers()
            return read_queues(self._redis, self._ledger.keys, agents, workers)

    def agent_statuses(self) -> list[AgentStatus]:
        """Return how every agent stands: its workers, its queues, and what its workers are doing."""
        with self._broker_errors():
            agents, workers = self._known_agents.all(), self._roster.workers()
            return read_agents(self._redis, self._ledger.keys, agents, workers)

    def shutdown(
        self, agent: str | None = None, worker: str | None = None, reason: str = ""
    ) -> list[WorkerRecord]:
        """Ask an agent's workers, or one worker by its name, to drain as they do on SIGTERM.

        Return those that it is about; each notices within seconds. One that serves other agents too goes on
        for them. A worker that begins later is not meant.

        Raises:
            AgentNotFoundError: no such agent.
            ValueError: neither an agent nor a worker is named, or both are.
        """
        request = ShutdownRequest(agent=agent, worker=worker, reason=reason)
        with self._broker_errors():
            if agent is not None:
                self._known_agents.require(agent)
            ShutdownRequests(self._redis, self._ledger.keys).ask(request)
            return [one for one in self._roster.workers() if agent in one.agents or one.name == worker]

    def _forget(self, call_id: str, agent: str) -> None:
        with self._broker_errors():
            self._ledger.forget(call_id, agent)

    def _submit(self, drafts: list[Draft]) -> list[PendingCall]:
        with self._broker_errors():
            for agent in {draft.call.agent_name for draft in drafts}:
                self._known_agents.require(agent)
            self._listener.start()
            # the futures stand before the calls do: a result may be quicker than this thread
            pending = [self._pending(draft.id) for draft in drafts]
            for call in self.submitter.submit(drafts, self._listener.producer):
                if not call.is_new:
                    self._look(call.id)
        return pending

    def _hand_over(self, call: ToolCall) -> PendingCall:
        with self._broker_errors():
            self._known_agents.require(call.agent_name)
            self._listener.start()
            pending = self._pending(identity_of(call))
            submission = self.submitter.prepare_event(call)
            [one] = self.submitter.submit_prepared([submission], self.producer)
            if not one.is_new:
                self._look(pending.id)
        return pending

    def _call_off(self, pending: PendingCall) -> None:
        with contextlib.suppress(CallClosedError, CallNotFoundError):
            pending.cancel()

    def _replay(self, records: list[CallRecord]) -> dict[str, PendingCall]:
        calls = self._submit([Draft(replay_of(record)) for record in records])
        with self._broker_errors():
            self._dead_letters.note_replayed(records, [call.id for call in calls])
        return {record.id: call for record, call in zip(records, calls, strict=True)}

    def _agents_of(self, agent: str | None) -> list[str]:
        return [agent] if agent else list(self.agents())

    def _pending(self, call_id: str) -> PendingCall:
        return PendingCall(call_id, self._actions)

    def _look(self, call_id: str) -> str:
        """Read a call's status, and hand over its result if there is one.

        Whoever waits also sweeps, so that nobody waits for ever, not even without workers.
        """
        with self._broker_errors():
            result = self._result(call_id)
            if result is None and self._sweeper.sweep():
                result = self._result(call_id)
            record = self._ledger.record(call_id)
        if result is not None:
            self._listener.resolve(call_id, result)
        elif record is None:
            raise _not_found(call_id)
        return record.status if record is not None else "done"

    def _result(self, call_id: str) -> ToolCallResult | None:
        try:
            return self._ledger.result(call_id)
        except ValueError as error:
            raise CallNotFoundError(f"The result of call {call_id!r} cannot be read: {error}") from error

    @contextlib.contextmanager
    def _broker_errors(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            reason = reason_unreachable(self.settings.redis_url, error)
            raise BrokerUnreachableError(reason) from error


def _require_possible(call_id: str) -> None:
    """Refuse what no call is called, before Redis is asked.

    Raises:
        CallNotFoundError: it is too long, or no text that can be sent.
    """
    try:
        size = len(call_id.encode())
    except UnicodeEncodeError as error:
        raise _not_found(call_id) from error
    if size > LONGEST_ID:
        raise _not_found(f"{call_id[:LONGEST_ID]}…")


def _no_letter(call_id: str, reason: str) -> CallNotFoundError:
    return CallNotFoundError(
        f"Call {call_id} is no dead letter: {reason}.", suggestion="`goondan dead-letters list` shows them."
    )


def _not_found(call_id: str) -> CallNotFoundError:
    return CallNotFoundError(
        f"No call {call_id!r}: it is unknown, its record has expired, or this version cannot read it."
    )
