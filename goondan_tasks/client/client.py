"""The client of a producer process."""

from goondan_tasks.client.agent_methods import AgentMethods
from goondan_tasks.client.agent_status import AgentStatus, read_agents
from goondan_tasks.client.call_methods import CallMethods
from goondan_tasks.client.dead_letter_methods import DeadLetterMethods
from goondan_tasks.client.instance_methods import InstanceMethods
from goondan_tasks.client.pending_call import LONGEST_ID
from goondan_tasks.client.pending_methods import ErrorLike, PendingMethods, as_exception
from goondan_tasks.client.queue_status import QueueStatus, read_queues
from goondan_tasks.client.received_event import ReceivedEvent
from goondan_tasks.client.turn_methods import TurnMethods
from goondan_tasks.errors import CallNotFoundError, HandoffError
from goondan_tasks.messages import JsonObject
from goondan_tasks.roster import WorkerRecord
from goondan_tasks.shutdown import ShutdownRequest, ShutdownRequests
from goondan_tasks.trace.nodes import Trace
from goondan_tasks.trace.reading import read_trace


class Client(CallMethods, TurnMethods, PendingMethods, DeadLetterMethods, AgentMethods, InstanceMethods):
    """Submits tool calls to agents' queues and receives their results. Threads may share it.

    It raises only for an unknown agent, a payload too large, a conflict or an unreachable broker;
    everything else that goes wrong with a call is its result.
    """

    def fail(self, failed: ReceivedEvent | str, error: ErrorLike) -> None:
        """Complete a pending call, by its id, with an error; or answer an event so, as a raising entry does.

        Raises:
            CallNotFoundError, CallClosedError, CallNotPendingError: as :meth:`resolve`; of an event, that
                nobody wants the answer any more.
            ToolInputValidationError: ``error`` is an object without a message.
            BrokerUnreachableError: Redis cannot be reached.
        """
        if isinstance(failed, str):
            self._fail_call(failed, error)
        else:
            self._fail_event(failed, as_exception(error, HandoffError))

    def catalog(self, agent: str) -> tuple[JsonObject, ...]:
        """Return an agent's Tool Catalog, with the dynamic tools that its workers have now.

        The items are ToolCatalogItems (003 §11).

        Raises:
            AgentNotFoundError: no such agent.
        """
        with self._broker_errors():
            return self._known_agents.current(agent).catalog

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

    def trace(self, name: str) -> Trace:
        """Return the tree of calls and handoffs that come from one another; how long each waited and ran.

        Instead of the correlationId, ``name`` may be the id of one of the calls, or their traceId.

        Raises:
            CallNotFoundError: nothing has that name, or all of it has expired.
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            trace = read_trace(self._ledger, name, self._known_agents.all())
        if trace is None:
            raise CallNotFoundError(f"No trace {name[:LONGEST_ID]!r}: nothing has that correlationId or id.")
        return trace
