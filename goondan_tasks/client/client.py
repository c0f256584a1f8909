"""The client of a producer process."""

import itertools
import math
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Unpack, cast

from goondan_tasks.client.acts import OF_CALLS
from goondan_tasks.client.approvals import ApprovalClient
from goondan_tasks.client.arguments import checking_arguments, end_of_wait
from goondan_tasks.client.bundles import BundleClient
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.following import FollowTerms
from goondan_tasks.client.letters import LetterClient
from goondan_tasks.client.operations import OperatorClient
from goondan_tasks.client.pending_call import (
    LONGEST_ID,
    CallOutput,
    OutputPart,
    PendingCall,
    require_possible,
)
from goondan_tasks.client.reading import FollowedEvent, Position
from goondan_tasks.client.requests import RequestClient
from goondan_tasks.client.status import AgentStatus, QueueStatus, read_agents, read_queues
from goondan_tasks.client.turns import Turn, TurnScope
from goondan_tasks.contract.calls import CallDraft, CallFields, timed_draft
from goondan_tasks.contract.conversation import ConversationFiles
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    ConversationError,
    HandoffError,
    NoOutputError,
    PayloadTooLargeError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.failure import ErrorLike, as_exception
from goondan_tasks.contract.messages import JsonObject, Message, ToolCall, ToolCallResult
from goondan_tasks.contract.names import current_span
from goondan_tasks.contract.output import encoded_output
from goondan_tasks.contract.wording import require_keywords
from goondan_tasks.fleet.agent_registry import WorkerRecord
from goondan_tasks.fleet.audit import recording
from goondan_tasks.fleet.call_counts import CountStore, TotalCounts
from goondan_tasks.fleet.connections import ConnectionStatus, all_connections
from goondan_tasks.history.failures import Failures, read_failures
from goondan_tasks.history.reasons import read_reason
from goondan_tasks.history.trace import CallStory, Trace, TraceSummary, read_story, read_trace, read_traces
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.call_search import CallPage, CallSearch
from goondan_tasks.ledger.record import CallRecord, Outcome


@recording(OF_CALLS)
@checking_arguments
class Client(ApprovalClient, LetterClient, OperatorClient, BundleClient, RequestClient):
    """Submits tool calls to agents' queues and receives their results. Threads may share it.

    Methods raise only for an unknown agent, a payload too large, a conflict or an unreachable broker; any
    other failure of a call is its result. A wrong argument raises ToolInputValidationError before anything is
    sent. Every method that needs Redis or the broker raises BrokerUnreachableError if it cannot be reached: a
    method with a ``timeout`` when that is over, any other after ``GOONDAN_CONNECT_TIMEOUT_SECONDS``. Until
    then it retries, and nothing is done twice.
    """

    # Tool calls

    def submit(self, agent: str, tool: str, args: Any = None, **fields: Unpack[CallFields]) -> PendingCall:
        """Queue a call and return at once. The same identity again is the same call.

        With ``not_before``, a datetime with a time zone or ISO 8601 text, or ``delay``, in seconds, it is
        scheduled: no worker gets it before that time, by the clock of Redis, and its wait in the queue begins
        then. A call that was submitted before keeps its time.

        Raises:
            AgentNotFoundError: no such agent.
            PayloadTooLargeError: the arguments exceed ``MAX_ARGS_BYTES``.
            ToolCallConflictError: the identity was submitted with other arguments.
            UnconfirmedError: it is accepted, and too few replicas have it; ``calls`` are the handles.
            TypeError: a field that calls do not have.
        """
        require_keywords("submit()", fields, CallFields.__annotations__)
        wire = {**fields, "agentName": agent, "toolName": tool, "args": args}
        return self.submit_drafts([timed_draft(wire)])[0]

    def submit_many(self, calls: Iterable[ToolCall | Mapping[str, Any]]) -> list[PendingCall]:
        """Queue many calls, up to 1,000 in one trip; dicts of wire fields are completed as by :meth:`submit`.

        Raises:
            TypeError: one of them is neither; none is queued.
            AgentNotFoundError, PayloadTooLargeError: as :meth:`submit`, for one of them; none is queued.
            ToolCallConflictError: as :meth:`submit`, for at least one of them. The others are queued: the
                error's ``calls`` are the handles of all, in order. Those of calls in conflict raise the
                error when their result is asked for.
            BrokerUnreachableError: Redis cannot be reached. The calls of earlier trips are queued.
        """
        return self.submit_batches(calls if isinstance(calls, list | tuple) else list(calls), _draft)

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
        end = end_of_wait(timeout)
        require_keywords("call()", fields, CallFields.__annotations__)
        draft = timed_draft({**fields, "agentName": agent, "toolName": tool, "args": args})
        with self.retrying(timeout):
            [pending] = self.submit_drafts([draft], is_awaited=True)
        return pending.result(None if end is None else max(0.0, end - time.monotonic()))

    def pending(self, call_id: str) -> PendingCall:
        """Return a call that was submitted before, here or elsewhere.

        Raises:
            CallNotFoundError: unknown, expired, or of a version that this one cannot read.
        """
        require_possible(call_id)
        [call] = self._calls.pending([call_id])
        call.status()
        return call

    def follow(self, turn_id: str, after: str | None = None) -> Generator[FollowedEvent]:
        """Yield the events of a Turn, or of a call, by its id, each with its cursor; the end is the last.

        Any number of followers may do so, from any place; leaving changes nothing for the Turn. With
        ``after``, the cursor of an event, those after it are yielded, none of them twice. What was accepted
        with ``keep`` has all events until that many seconds after its end. Without it, or later, there are
        the progress and the end, and only the end once it is over. An outage of Redis is waited for.

        The end of a Turn that has failed has an ``error``.

        Raises:
            CallNotFoundError: as :meth:`pending`.
            ToolInputValidationError: ``after`` is no cursor.
        """
        terms = FollowTerms(cancel_on_close=False, is_asker=False, after=Position.of(after))
        follower = self.follower(turn_id, lambda: self.pending(turn_id), terms)
        return cast(Generator[FollowedEvent], follower.followed())

    def output(self, call_id: str) -> CallOutput:
        """Return the output of a call that succeeded, to be read in parts.

        Raises:
            NoOutputError: it has not ended yet, or ended with an error.
            CallNotFoundError: as :meth:`pending`.
        """
        pending = self.pending(call_id)
        try:
            return CallOutput(pending.result(0), self)
        except WaitTimeout as error:
            raise NoOutputError(f"Call {call_id} has no output yet: it is {pending.status()}.") from error

    def read_output(
        self, call_id: str, offset: int = 0, limit: int | None = None, *, timeout: float | None = None
    ) -> OutputPart:
        """Read a part of a call's output, JSON text in UTF-8; ``next_offset`` is where the next part begins.

        A large output is in a file of the workdir, and a worker of the call's agent reads the part; it may
        send fewer than ``limit`` bytes at once.

        Raises:
            NoOutputError, CallNotFoundError: as :meth:`output`.
            ToolInputValidationError: ``offset`` is past the end.
            OutputGoneError: the file no longer exists.
            WaitTimeout: no worker has answered within ``timeout`` seconds.
        """
        output = self.output(call_id)
        return output.read(offset, limit, wait=lambda asked: asked.result(timeout))

    def run_now(self, call_id: str) -> None:
        """Run a scheduled call, or deliver a scheduled event, at once; see :meth:`PendingCall.run_now`.

        Raises:
            CallClosedError: it has its final result already, or is cancelled.
            CallNotFoundError: as :meth:`pending`.
        """
        self._calls.run_now(call_id)

    def cancel(self, call_id: str) -> None:
        """Cancel a call, submitted here or elsewhere; see :meth:`PendingCall.cancel`.

        Raises:
            CallClosedError: it has its final result already.
            CallNotFoundError: as :meth:`pending`.
        """
        self._calls.cancel(call_id)

    def describe(self, call_id: str) -> CallStory:
        """Return everything known about a call, related calls included; raises as :meth:`record`."""
        record = self.record(call_id)
        with self.broker_errors():
            why = read_reason(self._ledger, record, self._known_agents.all, self._agent_registry.workers)
            return read_story(self._ledger, record, why)

    def calls(
        self, agent: str | None = None, limit: int = 50, **wanted: Unpack[CallFilter]
    ) -> list[CallRecord]:
        """Return the most recent calls, of one agent or of all, the newest first.

        A filter searches as :meth:`call_page` does, and returns what its first page finds. Records that this
        version cannot read are left out, and logged.
        """
        return list(self.call_page(agent, limit, **wanted).calls)

    def call_page(
        self,
        agent: str | None = None,
        limit: int = 50,
        *,
        cursor: str | None = None,
        only_letters: bool = False,
        **wanted: Unpack[CallFilter],
    ) -> CallPage:
        """Return a page of the calls that a filter selects, the newest first, and where to go on.

        A page has looked at :data:`~goondan_tasks.ledger.call_search.SEARCHED` calls at most; with its
        ``cursor`` the search goes on, also if the page is empty. The latest 10,000 calls of each agent are
        searched, and the latest 10,000 that ended with an error; if only those can be selected, they are in
        the order of their ends. Of scheduled calls, the soonest come first, on one page. ``only_letters``
        searches the dead letters that were not dropped.

        Raises:
            ToolInputValidationError: ``cursor`` is not that of a page of this list.
        """
        require_keywords("call_page()", wanted, CallFilter.__annotations__)
        with self.broker_errors():
            search = CallSearch(self._ledger, self._with_facts, only_letters=only_letters)
            return search.page(self._agents_of(agent), limit, cursor, wanted)

    def failures(
        self,
        agent: str | None = None,
        *,
        only_dead: bool = False,
        older_than: float | None = None,
        newer_than: float | None = None,
    ) -> Failures:
        """Return the latest 2,000 calls that ended with an error, by what their failures have in common.

        These are the tool, the code, and the first line of the message without numbers, ids and quoted texts.
        ``only_dead`` counts the dead letters only; ages are seconds since the end of a call.
        """
        with self.broker_errors():
            return read_failures(
                self._ledger,
                self._agents_of(agent),
                only_dead=only_dead,
                older_than=older_than,
                newer_than=newer_than,
            )

    def trace(self, name: str) -> Trace:
        """Return the tree of calls and handoffs of one trace, with the times that each waited and ran.

        ``name`` is the correlationId, the traceId, or the id of one of the calls.

        Raises:
            CallNotFoundError: nothing has that name, or all of it has expired.
        """
        with self.broker_errors():
            trace = read_trace(self._ledger, name, self._known_agents.all)
        if trace is None:
            raise CallNotFoundError(f"No trace {name[:LONGEST_ID]!r}: nothing has that correlationId or id.")
        return trace

    def traces(
        self, limit: int = 20, *, older_than: float | None = None, newer_than: float | None = None
    ) -> list[TraceSummary]:
        """Return the traces of the most recent calls, 1000 at most; times as in :meth:`calls`."""
        with self.broker_errors():
            ages = CallFilter(older_than=older_than, newer_than=newer_than)
            return read_traces(self._ledger, self._known_agents.all(), limit, **ages)

    def turn(
        self,
        agent: str,
        instance_key: str = "default",
        *,
        turn_id: str | None = None,
        auth: JsonObject | None = None,
        origin: JsonObject | None = None,
        correlation_id: str | None = None,
    ) -> Turn:
        """Begin a Turn of an agent's instance, or continue the one called ``turn_id``; nothing is sent yet.

        ``auth`` and ``origin`` go with each of its calls. ``goondan trace`` finds them all by the
        ``correlation_id``, which is the Turn's id unless it is given.

        Raises:
            ToolInputValidationError: the instance's key is empty.
        """
        if instance_key == "":
            raise ToolInputValidationError(
                "The instance key is empty: leave it out for the default instance."
            )
        here, turn_id = current_span(), turn_id or f"turn-{secrets.token_hex(6)}"
        trace_id = secrets.token_hex(16) if here is None else here.trace_id
        scope = TurnScope(
            self, agent, instance_key, turn_id, trace_id, correlation_id or turn_id, auth, origin
        )
        return Turn(scope)

    # Pending calls

    def resolve(self, call_id: str, output: Any = None) -> None:
        """Complete a pending call with its output, any JSON; its status becomes ``ok``.

        If the handler still runs, the call is completed as soon as the handler returns a pending result; if
        the handler returns something else, that is the result.

        Raises:
            CallClosedError: it has its final result, or was completed before; also if it has expired.
            CallNotPendingError: it waits for an approval, or has not been run.
            CallNotFoundError: as :meth:`pending`.
            ToolOutputError: the output is not JSON.
            PayloadTooLargeError: it is larger than ``MAX_OUTPUT_BYTES``.
        """
        self._complete(call_id, self._outcome(output))

    def complete_with_token(
        self, call_id: str, token: str, output: Any = None, error: ErrorLike | None = None
    ) -> None:
        """Complete a call as :meth:`resolve` does, or with an error, by the token of its callback.

        Raises:
            CallNotFoundError: there is no such call, or the token is not that of its ``ctx.callback_url``.
            ToolInputValidationError: ``error`` has no message.
        """
        require_possible(call_id)
        outcome = self._outcome(output) if error is None else self._error_outcome(error)
        with self.broker_errors():
            self._completions.complete_with_token(call_id, token, outcome)

    def fail(self, failed: ReceivedEvent | str, error: ErrorLike) -> None:
        """Complete a pending call, by its id, with an error; or answer an event with one.

        Raises:
            CallNotFoundError, CallClosedError, CallNotPendingError: as :meth:`resolve`; for an event,
                CallClosedError if it no longer takes an answer.
            ToolInputValidationError: ``error`` is an object without a message.
        """
        if isinstance(failed, str):
            self._complete(failed, self._error_outcome(error))
            return
        exception = as_exception(error, HandoffError)
        with self.broker_errors():
            self._event_receiver.fail(failed, exception)

    def _outcome(self, output: Any) -> Outcome:
        data, told = encoded_output(output, "The completion")
        size, most = len(data), self.settings.max_output_bytes
        if size > most:
            raise PayloadTooLargeError(
                f"The output takes {size} bytes; at most {most} are allowed.",
                suggestion="Put large data where the agent can read it, and complete the call with its path.",
            )
        return Outcome(told)

    # Agents and their events: see ClientConnection for more

    def receive(
        self, agent: str, instance_key: str | None = None, timeout: float | None = None
    ) -> ReceivedEvent | None:
        """Return the next event of an agent without an entry, for this producer to handle.

        The event is held under a lease, which is renewed until :meth:`reply` or :meth:`fail` is called;
        meanwhile the instance's other events wait. Return ``None`` after ``timeout`` seconds without an
        event; an outage of Redis does not end the wait earlier.

        Raises:
            AgentNotFoundError: no such agent.
            AgentHasEntryError: its workers handle its events.
            ToolInputValidationError: the instance's key is empty.
        """
        if instance_key == "":
            raise ToolInputValidationError(
                "The instance key is empty: leave it out for events of any instance."
            )
        with self.broker_errors(), self.retrying(math.inf if timeout is None else timeout):
            return self._event_receiver.receive(
                agent, instance_key, timeout, taker=f"producer-{self.producer}"
            )

    def reply(self, received: ReceivedEvent, output: Any = None) -> None:
        """Answer an event with any JSON.

        Raises:
            CallClosedError: the event no longer takes an answer.
            ToolOutputError: the output is not JSON.
        """
        with self.broker_errors():
            self._event_receiver.reply(received, output)

    def give_back(self, received: ReceivedEvent) -> None:
        """Return an event that was not handled: it is the next one of its instance to be received."""
        with self.broker_errors():
            self._event_receiver.give_back(received)

    def catalog(self, agent: str) -> tuple[JsonObject, ...]:
        """Return an agent's Tool Catalog, with the dynamic tools that its workers have now.

        The items are ToolCatalogItems (003 §11).

        Raises:
            AgentNotFoundError: no such agent.
        """
        with self.broker_errors():
            return self._known_agents.current(agent).catalog

    # Workers, queues and instances

    def workers(self) -> list[WorkerRecord]:
        """Return the worker processes that are alive."""
        with self.broker_errors():
            return self._agent_registry.workers()

    def queues(self) -> list[QueueStatus]:
        """Return the state of every agent's queue."""
        with self.broker_errors():
            agents, workers = self._known_agents.all(), self._agent_registry.workers()
            return read_queues(self._ledger, agents, workers)

    def agent_statuses(self) -> list[AgentStatus]:
        """Return the state of every agent: its workers, its queues, and what its workers are doing."""
        with self.broker_errors():
            agents, workers = self._known_agents.all(), self._agent_registry.workers()
            return read_agents(self._ledger, agents, workers)

    def call_counts(self) -> TotalCounts:
        """Return the counts of calls: by workers, and of those that were lost or settled outside a run."""
        with self.broker_errors():
            return CountStore(self._redis, self._ledger.keys).totals()

    def connections(self) -> list[ConnectionStatus]:
        """Return how the Connections fare that ran in the last 30 days, by workspace and name."""
        with self.broker_errors():
            return all_connections(self._redis, self._ledger.keys)

    def instances(
        self,
        agent: str | None = None,
        instance_key: str | None = None,
        *,
        containing: str = "",
        limit: int | None = None,
    ) -> list[InstanceInfo]:
        """Return the instances, of one agent or of all, the one used last first.

        With ``instance_key`` those of that key, without reading the records of all others. With ``limit`` so
        many of those whose keys contain a text, ``containing``, without reading the records of older ones.
        """
        with self.broker_errors():
            if limit is not None and instance_key is None:
                return self._housekeeping.latest(agent, containing, limit)
            return self._housekeeping.infos(agent, instance_key)

    def conversation(self, agent: str, instance_key: str = "default") -> list[Message]:
        """Return the messages of an agent that thinks, those of a Turn in progress included.

        They are read from the instance's directory, below this process's ``GOONDAN_STATE_ROOT``.

        Raises:
            InstanceNotFoundError: the agent has no such instance.
            ConversationError: the files are not below this state root, or cannot be read.
        """
        with self.broker_errors():
            directory = self._housekeeping.directory(instance_key, agent)
        try:
            return ConversationFiles.of(directory, agent).read()
        except OSError as error:
            raise ConversationError(f"{error.filename} cannot be read: {error.strerror}") from error

    def delete_instance(
        self, instance_key: str, agent: str | None = None, *, dry_run: bool = False
    ) -> list[InstanceRemoval]:
        """Delete an instance with its files, or only one agent's part of it.

        Files are removed below this process's ``GOONDAN_STATE_ROOT``; the removal names those elsewhere.
        Agents that work under one key share its directory, which is removed with the last of them. There is
        one removal for each workspace that has such an instance. ``dry_run`` only reports what would be done.

        Raises:
            InstanceNotFoundError: there is none.
            InstanceBusyError: it has live calls, or another instance works in its directory.
        """
        with self.broker_errors():
            return self._housekeeping.delete(instance_key, agent, dry_run=dry_run)

    def collect_garbage(
        self,
        older_than_seconds: float,
        *,
        unlisted: bool = False,
        dry_run: bool = False,
        watch: Callable[[InstanceRemoval], object] | None = None,
    ) -> list[InstanceRemoval]:
        """Delete the instances that were unused for that time, as :meth:`delete_instance` does.

        Those with live calls stay. ``unlisted`` includes directories that Redis does not know and that were
        unchanged for that time. ``watch`` is called with each removal as soon as it is done.
        """
        found = []
        with self.broker_errors():
            removals = self._housekeeping.collect(older_than_seconds, dry_run=dry_run)
            if unlisted:
                others = self._housekeeping.collect_unlisted(older_than_seconds, dry_run=dry_run)
                removals = itertools.chain(removals, others)
            for removal in removals:
                found.append(removal)
                if watch is not None:
                    watch(removal)
        return found


def _draft(call: ToolCall | Mapping[str, Any]) -> CallDraft:
    if isinstance(call, ToolCall):
        return CallDraft(call if call.edited is None else call.model_copy(update={"edited": None}))
    if isinstance(call, Mapping):
        return timed_draft(call)
    raise TypeError(f"submit_many() takes a list of ToolCalls or dicts, not of {type(call).__name__}")
