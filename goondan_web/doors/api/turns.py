"""Turns: begin one, wait for it, cancel it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field
from starlette.responses import Response

from broker_config import serializer
from goondan_tasks.client import AsyncClient
from goondan_tasks.client.following import CHAT_SECONDS
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallClosedError,
    CallNotFoundError,
    PayloadTooLargeError,
    ToolCallConflictError,
    ToolInputValidationError,
)
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import (
    ANSWER_METADATA,
    LONGEST_KEEP_SECONDS,
    LONGEST_RUN_SECONDS,
    JsonObject,
)
from goondan_tasks.ledger.record import CallRecord
from goondan_web.answers import RequestError
from goondan_web.callers import caller_of
from goondan_web.doors.api.events import RESUMING, STREAMED, Following, event_stream
from goondan_web.doors.api.operations import Asked, Content, Handler, Operation, Reply
from goondan_web.doors.api.runs import BEGINNING, TurnView, Waits
from goondan_web.doors.api.wire import Begun, Waiting

#: the scope of those who may begin and end
CALLING = "call:{agent}"
_KEY = re.compile(r"[!-~]{1,255}")


class TurnBody(Begun):
    """What an agent is asked."""

    passed_alone = frozenset({"input", "timeout_seconds"})

    input: Any = Field(None, description="Any JSON; an agent that thinks takes text.")
    timeout_seconds: float | None = Field(
        None, gt=0, le=LONGEST_RUN_SECONDS, description="Limits the wait in the mailbox, and the handling."
    )
    keep: float | None = Field(
        CHAT_SECONDS,
        gt=0,
        le=LONGEST_KEEP_SECONDS,
        description="For how many seconds after the end its events can be followed. Default: an hour; "
        "`null`: they cannot.",
    )
    metadata: JsonObject | None = None
    output_schema: JsonObject | None = Field(None, description="The JSON Schema that the answer must fit.")


@dataclass(frozen=True, slots=True)
class Turns:
    """The operations on Turns."""

    client: AsyncClient
    waits: Waits

    async def begin_turn(self, asked: Asked) -> Reply:
        """Begin a Turn of an agent."""
        body: TurnBody = asked.body
        if ANSWER_METADATA in (body.metadata or {}):
            raise ToolInputValidationError(f"body.metadata: only the system sets {ANSWER_METADATA}.")
        turn = await self.client.start_turn(
            asked.path["agent"],
            body.input,
            request_key=request_key(asked),
            timeout=body.timeout_seconds,
            **body.fields(caller_of(asked.request.scope)),
        )
        return await self.waits.begun(turn, asked, TurnView.of)

    async def get_turn(self, asked: Asked) -> Reply:
        """Show a Turn, or wait for its end."""
        query: Waiting = asked.query
        turn_id = asked.path["id"]
        _require_turn(await self.client.record(turn_id))
        return Reply(TurnView.of(await self.waits.record(turn_id, query.wait)))

    async def follow_turn(self, asked: Asked) -> Response:
        """Follow the events of a Turn that was begun with `keep`."""
        _require_turn(await self.client.record(asked.path["id"]))
        return await event_stream(self.client, self.waits, asked)

    async def cancel_turn(self, asked: Asked) -> Reply:
        """Cancel a Turn."""
        turn_id = asked.path["id"]
        _require_turn(await self.client.record(turn_id))
        await self.client.cancel(turn_id)
        return Reply(TurnView.of(await self.client.record(turn_id)))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        turn = Content("The Turn, as it is now.", TurnView)
        return [
            *beginning("turns", TurnBody, turn, self.begin_turn, self.get_turn, self.follow_turn),
            Operation(
                "POST",
                "/v1/turns/{id}/cancel",
                "turns",
                CALLING,
                self.cancel_turn,
                {200: turn},
                (CallNotFoundError, CallClosedError),
                is_for_askers=True,
            ),
        ]


def beginning(
    kind: str, body: type[Begun], shown: Content, begin: Handler, get: Handler, follow: Handler
) -> Sequence[Operation]:
    """Return the operations that begin a Turn or a call, show it, and follow its events."""
    ended = replace(shown, description="It has ended within the wait; `outcome` says how.")
    refused = (AgentNotFoundError, PayloadTooLargeError, ToolCallConflictError, ToolInputValidationError)
    path, unknown = f"/v1/{kind}/{{id}}", (CallNotFoundError,)
    return [
        Operation(
            "POST",
            f"/v1/agents/{{agent}}/{kind}",
            kind,
            CALLING,
            begin,
            {200: ended, 202: replace(shown, description="It goes on.")},
            (*refused, *unknown),
            body=body,
            headers=BEGINNING,
        ),
        Operation("GET", path, kind, "read", get, {200: shown}, unknown, query=Waiting, is_for_askers=True),
        Operation(
            "GET",
            f"{path}/events",
            kind,
            "read",
            follow,
            {200: STREAMED},
            unknown,
            query=Following,
            headers=RESUMING,
            is_for_askers=True,
        ),
    ]


def request_key(asked: Asked) -> str | None:
    """Return the Idempotency-Key of a request, as the client's ``request_key``.

    Raises:
        RequestError: it is empty, too long, or not ASCII.
    """
    given = asked.request.headers.get("idempotency-key")
    if given is None:
        return None
    if _KEY.fullmatch(given) is None:
        raise RequestError("Idempotency-Key: take 1 to 255 visible ASCII characters, such as a UUID.")
    # neither callers nor their users share keys, since the answer to one has the call of the other
    caller = caller_of(asked.request.scope)
    user = "" if caller.auth is None else f"{serializer.encode(caller.auth).decode()} "
    return f"http {caller.name} {user}{given}"


def _require_turn(record: CallRecord) -> None:
    if not is_event(record.call):
        raise CallNotFoundError(f"{record.id} is a call of a tool: ask for /v1/calls/{record.id}.")
