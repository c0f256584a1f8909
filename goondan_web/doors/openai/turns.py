"""The Turns behind responses: begun, found again by their askers, and followed until the server ends."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from starlette.requests import Request

from goondan_tasks.client import AsyncClient
from goondan_tasks.client.following import CHAT_SECONDS
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.http_tokens import ADMIN, CALL
from goondan_tasks.ledger.record import CallRecord
from goondan_web.answers import RequestError
from goondan_web.callers import Caller, caller_of, require
from goondan_web.doors.openai.formats import ANY_TEXT, AnswerFormat
from goondan_web.doors.openai.requests import ParameterError
from goondan_web.doors.openai.response_events import COMPLETED, FAILED, ResponseEvents, ResponseHead
from goondan_web.event_streams import until

PREFIX = "resp_"
INSTANCE_HEADER = "x-goondan-instance"
_NOTE = "openai"


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A Turn that was begun at this door."""

    record: CallRecord
    head: ResponseHead

    @property
    def has_ended(self) -> bool:
        return self.record.has_ended

    def shown(self) -> JsonObject:
        """Return the response as it is before its end."""
        if self.record.is_cancelled:
            return self.head.shown("cancelled")
        return self.head.shown("in_progress" if self.record.status in {"running", "pending"} else "queued")


class ResponseTurns:
    """The Turns of all responses."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        #: set when the server ends
        self.over = asyncio.Event()

    async def end(self) -> None:
        """End the answers that follow Turns; the Turns go on."""
        self.over.set()

    async def begin(
        self,
        request: Request,
        model: str,
        text: str,
        answer: AnswerFormat,
        *,
        instance: str | None = None,
        is_background: bool = False,
        previous: str | None = None,
    ) -> KnownTurn:
        """Begin a Turn, in a new instance if none is named.

        Raises:
            GoondanError: the caller may not ask this agent, or there is none, or what was sent is refused.
        """
        caller = require(request, CALL + model)
        key = request.headers.get(INSTANCE_HEADER) or instance
        if key and "{{" in key:  # all chats of all users would share one conversation
            raise ParameterError(
                "user" if key == instance else INSTANCE_HEADER,
                f"The instance is {key[:100]!r}: the chat program has not filled in its placeholder.",
                suggestion="Take a newer version of it, or another placeholder.",
            )
        if previous is not None:
            before = await self._known(previous, caller, "previous_response_id")
            if before.head.model != model:
                raise ParameterError(
                    "model", f"{previous} is an answer of {before.head.model}, not of {model}."
                )
            key = before.record.call.instance_key
        note = {
            "caller": caller.name,
            "background": is_background,
            "previous": previous,
            "format": answer.wire,
        }
        turn = await self._client.start_turn(
            model,
            text,
            instance_key=key or f"openai-{uuid.uuid4().hex}",
            keep=CHAT_SECONDS,
            auth=caller.auth_for(None),
            metadata={_NOTE: note},
            output_schema=answer.schema,
        )
        return _known_turn(await self._client.record(turn.id), note)

    async def find(self, request: Request, response_id: str) -> KnownTurn:
        """Return the Turn of a response, to the caller that asked for it.

        Raises:
            CallNotFoundError: there is none, or it is another caller's.
        """
        turn = await self._known(response_id, caller_of(request.scope), "response_id")
        require(request, CALL + turn.head.model)
        return turn

    async def cancel(self, turn: KnownTurn) -> None:
        """Cancel a Turn, unless it has ended."""
        with suppress(CallClosedError):
            await self._client.cancel(turn.record.id)

    async def events(self, turn: KnownTurn) -> AsyncGenerator[list[JsonObject]]:
        """Yield the events of a response from the first one on, until its end."""
        mapper = ResponseEvents(turn.head)
        yield list(mapper.begun())
        async with aclosing(self._client.follow(turn.record.id)) as followed:
            async for one in followed:
                yield list(mapper.mapped(one.event))

    async def response(self, turn: KnownTurn) -> JsonObject:
        """Return the response, once it has ended.

        Raises:
            RequestError: the server ends before.
        """
        async with aclosing(until(self.over, self.events(turn))) as parts:
            async for events in parts:
                for event in events or ():
                    if event["type"] in {COMPLETED, FAILED}:
                        response: JsonObject = event["response"]
                        return response
        raise RequestError(
            "The server ends; the agent goes on.", status=503, suggestion="Ask again in a moment."
        )

    async def _known(self, response_id: str, caller: Caller, param: str) -> KnownTurn:
        try:
            if not response_id.startswith(PREFIX):
                raise CallNotFoundError(response_id)
            record = await self._client.record(response_id.removeprefix(PREFIX))
        except CallNotFoundError as error:
            raise _unknown(response_id, param) from error
        note = _note_of(record)
        is_own = note.get("caller") == caller.name and record.call.auth == caller.auth
        if not note or not (is_own or caller.may(ADMIN)):
            raise _unknown(response_id, param)
        return _known_turn(record, note)


def _known_turn(record: CallRecord, note: JsonObject) -> KnownTurn:
    call = record.call
    head = ResponseHead(
        PREFIX + record.id,
        call.agent_name,
        record.queued_at // 1000,
        note.get("background") is True,
        note.get("previous"),
        _format_of(record, note),
    )
    return KnownTurn(record, head)


def _format_of(record: CallRecord, note: JsonObject) -> AnswerFormat:
    schema = record.call.args["payload"].get("outputSchema")
    return AnswerFormat(note["format"], schema) if "format" in note else ANY_TEXT


def _note_of(record: CallRecord) -> JsonObject:
    """Return what this door has written into the event of a Turn; nothing for what others began."""
    payload = record.call.args.get("payload") if is_event(record.call) else None
    metadata = payload.get("metadata") if isinstance(payload, dict) else None
    note = metadata.get(_NOTE) if isinstance(metadata, dict) else None
    return note if isinstance(note, dict) else {}


def _unknown(response_id: str, param: str) -> ParameterError:
    error = ParameterError(param, f"There is no response {response_id[:100]!r}, or not any more.")
    error.status = 404
    return error
