"""What a client can do about agents: ask them, tell them something, be the brain of some."""

import contextlib
from typing import Any, Unpack

from goondan_tasks.client.connection import Connection
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.received_event import ReceivedEvent
from goondan_tasks.errors import (
    CallClosedError,
    CallNotFoundError,
    ToolCallConflictError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.handoff import EventFields, accepted, not_answered, outside_call, request_result, sent
from goondan_tasks.messages import ToolCall
from goondan_tasks.tool_api import REQUEST_TIMEOUT_MS, RequestResult, SendResult


class AgentMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about agents."""

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
        ``client.pending(answer.id)`` is the request.

        Raises:
            HandoffError: the agent is unknown, failed, or was too slow.
            ToolInputValidationError, PayloadTooLargeError: the request is not accepted.
            BrokerUnreachableError: Redis or the broker cannot be reached.
            TypeError: a field that events do not have.
        """
        call, pending = self.ask(agent, input, timeout=timeout, **fields)
        if is_async:
            return accepted(call)
        try:
            return request_result(call, pending.result(timeout))
        except WaitTimeout as error:
            self.call_off(pending)
            raise not_answered(call, timeout) from error

    def ask(
        self, agent: str, input: Any = None, *, timeout: float, **fields: Unpack[EventFields]
    ) -> tuple[ToolCall, PendingCall]:
        """Ask an agent, and return the request to be waited for; raises as :meth:`request` does."""
        call = outside_call(self.settings, agent, input, fields, is_request=True, timeout=timeout)
        return call, self._submit_event(call)

    def call_off(self, pending: PendingCall) -> None:
        """Tell whoever deals with a request that nobody waits any more."""
        with contextlib.suppress(CallClosedError, CallNotFoundError):
            pending.cancel()

    def send(self, agent: str, input: Any = None, **fields: Unpack[EventFields]) -> SendResult:
        """Give an agent an event that it does not answer; raises as :meth:`request` does.

        One whose ``event_id`` the instance was given before with another content is not accepted.
        """
        call = outside_call(self.settings, agent, input, fields, is_request=False)
        try:
            self._submit_event(call)
        except ToolCallConflictError:
            return sent(call, accepted=False)
        return sent(call)

    def receive(
        self, agent: str, instance_key: str | None = None, timeout: float | None = None
    ) -> ReceivedEvent | None:
        """Return the next event of an agent without an entry, for its brain: this producer.

        The event is this producer's, under a lease that is renewed, until :meth:`reply` or
        :meth:`Client.fail` is called; the instance's other events wait. ``None`` after ``timeout`` seconds
        without one.

        Raises:
            AgentNotFoundError: no such agent.
            AgentHasEntryError: its workers handle its events.
            ToolInputValidationError: the instance's key is empty.
            BrokerUnreachableError: Redis cannot be reached.
        """
        if instance_key == "":
            raise ToolInputValidationError(
                "The instance key is empty: leave it out for events of any instance."
            )
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

    def _fail_event(self, received: ReceivedEvent, error: BaseException | str) -> None:
        with self._broker_errors():
            self._mailroom.fail(received, error)

    def give_back(self, received: ReceivedEvent) -> None:
        """Let somebody else have an event that was not looked at: it is handed out again, as the next one.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            self._mailroom.give_back(received)
