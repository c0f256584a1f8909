"""What a producer asks agents, and sends them."""

import contextlib
from collections.abc import Generator
from typing import Any, Unpack, cast

from goondan_tasks.calls import identity_of
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.turn_events import TurnEvent, TurnFollower
from goondan_tasks.errors import CallClosedError, CallNotFoundError, ToolCallConflictError, WaitTimeout
from goondan_tasks.handoff import EventFields, accepted, not_answered, outside_call, request_result, sent
from goondan_tasks.messages import ToolCall
from goondan_tasks.tool_api import REQUEST_TIMEOUT_MS, RequestResult, SendResult


class EventSender(ClientConnection):
    """The part of a client that sends events to agents, and waits for their answers."""

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
            TypeError: a field that events do not have.
        """
        call, pending = self.ask(agent, input, timeout=timeout, **fields)
        if is_async:
            return accepted(call)
        try:
            return request_result(pending.result(timeout))
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
        """Ask an agent as :meth:`request` does, and yield what happens in its Turn; at last the answer.

        Nothing is sent before the first event is asked for. An iterator that is closed before the end, as by
        ``break``, cancels the Turn, unless ``cancel_on_close`` is false. The events are those of
        :mod:`goondan_tasks.client.turn_events`; an agent that does not think has no more than its progress
        and the end. Raises as :meth:`request` does, while it yields.
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
        """Return a request, and what submits it when its events are asked for; see :meth:`request_stream`."""
        call = outside_call(self.settings, agent, input, fields, is_request=True, timeout=timeout)

        def begin() -> PendingCall:
            with self.retrying(timeout):
                return self.submit_event(call)

        late = not_answered(call, timeout)
        return call, self.follower(
            identity_of(call), begin, timeout=timeout, late=late, cancel_on_close=cancel_on_close
        )

    def ask(
        self, agent: str, input: Any = None, *, timeout: float, **fields: Unpack[EventFields]
    ) -> tuple[ToolCall, PendingCall]:
        """Ask an agent, and return the request to be waited for; raises as :meth:`request` does."""
        call = outside_call(self.settings, agent, input, fields, is_request=True, timeout=timeout)
        with self.retrying(timeout):
            return call, self.submit_event(call)

    def call_off(self, pending: PendingCall) -> None:
        """Cancel a request; one that has ended is left alone."""
        with contextlib.suppress(CallClosedError, CallNotFoundError):
            pending.cancel()

    def send(self, agent: str, input: Any = None, **fields: Unpack[EventFields]) -> SendResult:
        """Give an agent an event that it does not answer; raises as :meth:`request` does.

        An event is not accepted if the instance was given one with the same ``event_id`` and another content.
        """
        call = outside_call(self.settings, agent, input, fields, is_request=False)
        try:
            self.submit_event(call)
        except ToolCallConflictError:
            return sent(call, accepted=False)
        return sent(call)
