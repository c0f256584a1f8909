"""The door ``ag-ui``: runs of agents for front ends that speak AG-UI (https://docs.ag-ui.com)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.client.reading import Position
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.http_tokens import APPROVE, CALL
from goondan_web.callers import require
from goondan_web.door import Door, DoorContext
from goondan_web.doors.api.operations import RawRoute, body_of
from goondan_web.doors.api.wire import InstanceName, Name
from goondan_web.doors.front_ends.ag_ui_events import AgUiEvents
from goondan_web.doors.front_ends.requests import FromPage, text_of
from goondan_web.doors.front_ends.runs import Decision, PageResult, Runs, turn_identity
from goondan_web.doors.front_ends.streams import Streams, front_end_door
from goondan_web.paths import path_names

PATH = "/ag-ui"


class MessageIn(FromPage):
    """A message of the conversation, of which only the last ones are read: the agent has its own history."""

    role: str
    content: Any = None
    tool_call_id: Name | None = None
    error: str | None = None

    def result(self) -> PageResult:
        """Return what a message of the role ``tool`` says: JSON, or text.

        Raises:
            ToolInputValidationError: it names no call, or is not text.
        """
        if self.tool_call_id is None:
            raise ToolInputValidationError("messages: a message of the role tool needs a toolCallId.")
        if self.error is not None:
            return PageResult(self.tool_call_id, error=self.error or "The page could not do it.")
        text = self.content if isinstance(self.content, str) else text_of(self.content)
        with suppress(serializer.NotJsonError):
            return PageResult(self.tool_call_id, serializer.decode(text.encode()))
        return PageResult(self.tool_call_id, text)


class ToolIn(FromPage):
    """A tool that the page carries out; its description and parameters are those of the bundle."""

    name: Name


class ResumeIn(FromPage):
    """The answer to an interrupt."""

    interrupt_id: Name
    status: Literal["resolved", "cancelled"]
    payload: Any = None

    def decision(self) -> Decision:
        """Return what was decided.

        Raises:
            ToolInputValidationError: the payload does not say it.
        """
        if self.status == "cancelled":
            return Decision(self.interrupt_id, is_approved=False)
        payload = self.payload if isinstance(self.payload, dict) else {"approved": self.payload}
        approved, reason, args = (payload.get(name) for name in ("approved", "reason", "editedArgs"))
        is_text, is_object = isinstance(reason, str | None), isinstance(args, dict | None)
        if not (isinstance(approved, bool) and is_text and is_object):
            raise ToolInputValidationError(
                f"resume: the payload for {self.interrupt_id} does not say what was decided.",
                suggestion='Send {"approved": true}, with "editedArgs": {…} to change the arguments, or '
                '{"approved": false, "reason": "…"} as its payload.',
            )
        return Decision(self.interrupt_id, approved, reason or "", args)


class RunAgentInput(FromPage):
    """A request to run an agent."""

    thread_id: InstanceName
    run_id: Name
    messages: list[MessageIn]
    tools: list[ToolIn] = Field(default_factory=list)
    state: Any = None
    context: list[Any] = Field(default_factory=list)
    forwarded_props: Any = None
    resume: Annotated[list[ResumeIn], Field(max_length=100)] | None = None

    def text(self) -> str:
        """Return what the agent is asked.

        Raises:
            ToolInputValidationError: the last message is not the user's, or not text.
        """
        if not self.messages or self.messages[-1].role != "user":
            raise ToolInputValidationError(
                "messages: the last one must be the user's: it is what the agent is asked."
            )
        return text_of(self.messages[-1].content)

    def results(self) -> list[PageResult]:
        """Return the results of tools at the end of the messages.

        Raises:
            ToolInputValidationError: one of them cannot be read.
        """
        last = takewhile(lambda message: message.role == "tool", reversed(self.messages))
        return [message.result() for message in last][::-1]

    def metadata(self) -> JsonObject:
        """Return what else code of the agent may read, as ``event.metadata["agUi"]``."""
        given = {"state": self.state, "context": self.context, "forwardedProps": self.forwarded_props}
        filled = {name: value for name, value in given.items() if value not in (None, {}, [])}
        return {"agUi": filled} if filled else {}


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield ag_ui_door(context.client, context.settings)


def ag_ui_door(client: Client, settings: Settings) -> Door:
    """Make the door."""
    runs, streams = Runs(client), Streams(settings.help_url)

    async def run(request: Request) -> Response:
        agent = path_names(request)["agent"]
        caller = require(request, CALL + agent)
        asked = await body_of(request, RunAgentInput)
        await runs.require_tools(agent, [tool.name for tool in asked.tools])
        mapper = AgUiEvents(asked.thread_id, asked.run_id)
        if asked.resume:
            require(request, APPROVE)
            decisions = [entry.decision() for entry in asked.resume]
            decided = await runs.decide(agent, asked.thread_id, decisions, asked.results(), caller)
            return streams.answer(decided, mapper)
        if results := asked.results():
            return streams.answer(await runs.complete(agent, asked.thread_id, results, caller), mapper)
        turn_id = await runs.begin(
            agent, asked.thread_id, asked.run_id, asked.text(), caller.auth_for(None), asked.metadata()
        )
        return streams.answer(runs.turn(turn_id), mapper)

    async def attach(request: Request) -> Response:
        names = path_names(request)
        caller = require(request, CALL + names["agent"])
        after = request.query_params.get("after", request.headers.get("last-event-id"))
        place = None if after is None else Position.of(after)
        turn_id = turn_identity(names["agent"], names["thread_id"], names["run_id"])
        await runs.require(turn_id, caller)
        return streams.answer(runs.turn(turn_id), AgUiEvents(names["thread_id"], names["run_id"]), place)

    routes: Sequence[RawRoute] = [
        RawRoute(f"{PATH}/{{agent}}", run, methods=["POST"]),
        RawRoute(f"{PATH}/{{agent}}/threads/{{thread_id}}/runs/{{run_id}}", attach, methods=["GET"]),
    ]
    return front_end_door("ag-ui", PATH, routes, streams, settings)
