"""The door ``vercel``: agents for ``useChat`` of the AI SDK (https://ai-sdk.dev), as UI message streams."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.fleet.http_tokens import APPROVE, CALL
from goondan_web.callers import require
from goondan_web.door import Door, DoorContext
from goondan_web.doors.api.operations import RawRoute, body_of
from goondan_web.doors.api.wire import InstanceName, Name
from goondan_web.doors.front_ends.requests import FromPage, text_of
from goondan_web.doors.front_ends.runs import Decision, PageResult, Runs
from goondan_web.doors.front_ends.streams import Mapper, Streams, front_end_door
from goondan_web.doors.front_ends.vercel_chunks import UiChunks
from goondan_web.event_streams import frame
from goondan_web.paths import path_names

PATH = "/vercel"
_DONE = frame(b"[DONE]")
#: the states of a tool's part that has a result
_ANSWERED = ("output-available", "output-error")
_HEADERS = {"X-Vercel-AI-UI-Message-Stream": "v1"}


class MessageIn(FromPage):
    """A message of the conversation, of which only the last one is read: the agent has its own history."""

    id: Name
    role: str
    parts: list[dict[str, Any]]

    def decisions(self) -> Sequence[Decision]:
        """Return what the user has decided about calls of this message.

        Raises:
            ToolInputValidationError: a decision cannot be read.
        """
        answered = [part.get("approval") for part in self.parts if part.get("state") == "approval-responded"]
        return [_decision(approval) for approval in answered]

    def results(self) -> Sequence[PageResult]:
        """Return the results of tools in this message; those that came from here are among them.

        Raises:
            ToolInputValidationError: one of them cannot be read.
        """
        return [_result(part) for part in self.parts if part.get("state") in _ANSWERED]


class ChatRequest(FromPage):
    """What ``useChat`` sends by default."""

    id: InstanceName
    messages: list[MessageIn] = Field(min_length=1)
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield vercel_door(context.client, context.settings)


def vercel_door(client: Client, settings: Settings) -> Door:
    """Make the door."""
    runs, streams = Runs(client), Streams(settings.help_url)

    def answer(events: Any, mapper: Mapper) -> Response:
        return streams.answer(events, mapper, last=_DONE, headers=_HEADERS)

    async def chat(request: Request) -> Response:
        agent = path_names(request)["agent"]
        caller = require(request, CALL + agent)
        asked = await body_of(request, ChatRequest)
        last = asked.messages[-1]
        if asked.trigger == "regenerate-message":
            raise ToolInputValidationError(
                "trigger: an agent cannot answer a message again: it has acted already.",
                suggestion="Send a new message.",
            )
        if last.role == "assistant" and (decisions := last.decisions()):
            require(request, APPROVE)
            return answer(await runs.decide(agent, asked.id, decisions, last.results(), caller), UiChunks())
        if last.role == "assistant" and (results := last.results()):
            return answer(await runs.complete(agent, asked.id, results, caller), UiChunks())
        if last.role != "user":
            raise ToolInputValidationError(
                "messages: the last one must be the user's, or have its answers about approvals, or results."
            )
        turn_id = await runs.begin(
            agent, asked.id, last.id, text_of(list(last.parts)), caller.auth_for(None), {}
        )
        return answer(runs.turn(turn_id), UiChunks(turn_id))

    async def resume(request: Request) -> Response:
        names = path_names(request)
        caller = require(request, CALL + names["agent"])
        turn_id = await runs.open_turn(names["agent"], names["chat_id"], caller)
        if turn_id is None:
            return Response(status_code=204)
        return answer(runs.turn(turn_id), UiChunks(turn_id))

    routes = [
        RawRoute(f"{PATH}/{{agent}}", chat, methods=["POST"]),
        RawRoute(f"{PATH}/{{agent}}/{{chat_id}}/stream", resume, methods=["GET"]),
    ]
    return front_end_door("vercel", PATH, routes, streams, settings)


def _decision(approval: Any) -> Decision:
    fields = approval if isinstance(approval, dict) else {}
    call_id, approved, reason = fields.get("id"), fields.get("approved"), fields.get("reason", "")
    if not isinstance(call_id, str) or not isinstance(approved, bool) or not isinstance(reason, str):
        raise ToolInputValidationError("messages: an answer about an approval needs its id, and `approved`.")
    return Decision(call_id, approved, reason)


def _result(part: Mapping[str, Any]) -> PageResult:
    call_id, error = part.get("toolCallId"), part.get("errorText")
    if not isinstance(call_id, str) or not (error is None or isinstance(error, str)):
        raise ToolInputValidationError("messages: the result of a tool needs its toolCallId.")
    if part.get("state") == "output-error":
        return PageResult(call_id, error=error or "The page could not do it.")
    return PageResult(call_id, part.get("output"))
