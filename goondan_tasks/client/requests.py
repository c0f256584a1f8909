"""Turns and calls that a producer begins without waiting, each once however often the request is repeated."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Unpack

from goondan_tasks.authoring.handoff import EventFields
from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.contract.calls import CallFields, timed_draft
from goondan_tasks.contract.wording import require_keywords
from goondan_tasks.ledger.request_keys import made_once


@checking_arguments
class RequestClient(ClientConnection):
    """The requests of a client whose answers are asked for later, perhaps by another process."""

    def start_turn(
        self,
        agent: str,
        input: Any = None,
        *,
        request_key: str | None = None,
        timeout: float | None = None,
        **fields: Unpack[EventFields],
    ) -> PendingCall:
        """Begin a Turn of an agent as :meth:`request` does, and return it without waiting.

        ``timeout`` limits the wait in the mailbox and the handling, in seconds from the event's time on;
        ``None`` means the defaults. The same ``request_key`` with the same content is the same Turn, for
        ``GOONDAN_RESULT_TTL_SECONDS``.

        Raises:
            AgentNotFoundError: no such agent.
            ToolInputValidationError, PayloadTooLargeError: the request is not accepted.
            ToolCallConflictError: the key was used with other content.
            TypeError: a field that events do not have.
        """
        content = ["turn", agent, input, timeout, fields]
        with self.broker_errors(), self._once(request_key, content) as request_id:
            if request_id is not None:
                fields = {**fields, "event_id": request_id}
            return self.submit_event(self._event_call(agent, input, fields, is_request=True, timeout=timeout))

    def start_call(
        self,
        agent: str,
        tool: str,
        args: Any = None,
        *,
        request_key: str | None = None,
        **fields: Unpack[CallFields],
    ) -> PendingCall:
        """Submit a call as :meth:`submit` does; the same ``request_key`` and content is the same call.

        Raises:
            AgentNotFoundError, PayloadTooLargeError, ToolCallConflictError, UnconfirmedError: as
                :meth:`submit`; ToolCallConflictError also if the key was used with other content.
            TypeError: a field that calls do not have.
        """
        require_keywords("start_call()", fields, CallFields.__annotations__)
        content = ["call", agent, tool, args, fields]
        with self.broker_errors(), self._once(request_key, content) as request_id:
            if request_id is not None:
                fields = {**fields, "turn_id": f"turn-{request_id}", "tool_call_id": f"call_{request_id}"}
            wire = {**fields, "agentName": agent, "toolName": tool, "args": args}
            return self.submit_drafts([timed_draft(wire)])[0]

    def _once(self, key: str | None, content: Any) -> AbstractContextManager[str | None]:
        if key is None:
            return nullcontext()
        return made_once(self._ledger, key, content, seconds=self.settings.result_ttl_seconds)
