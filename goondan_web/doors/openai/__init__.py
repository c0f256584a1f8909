"""The door ``openai``: agents for clients of OpenAI's API, as its models (https://platform.openai.com/docs)."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import AgentNotFoundError, GoondanError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.http_tokens import CALL, READ
from goondan_web.answers import RequestError
from goondan_web.callers import caller_of
from goondan_web.door import MAX_HISTORY_BYTES, Access, Door, DoorContext
from goondan_web.doors.api.operations import RawRoute
from goondan_web.doors.openai.completions import Completion
from goondan_web.doors.openai.requests import (
    CompletionAsked,
    ParameterError,
    ResponseAsked,
    asked_of,
    error_body,
    error_form,
    format_of,
)
from goondan_web.doors.openai.response_events import FAILED, later
from goondan_web.doors.openai.turns import KnownTurn, ResponseTurns
from goondan_web.event_streams import frame, streamed
from goondan_web.paths import path_names

PATH = "/v1"
_DONE = frame(b"[DONE]")


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield openai_door(AsyncClient(context.client), context.settings)


def openai_door(client: AsyncClient, settings: Settings) -> Door:
    """Make the door."""
    turns = ResponseTurns(client)
    routes = OpenAiRoutes(client, turns)

    def route(method: str, path: str, handler: Callable[[Request], Awaitable[Response]]) -> RawRoute:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except GoondanError as error:
                return error_form(error, settings.help_url)

        return RawRoute(PATH + path, answer, methods=[method])

    return Door(
        "openai",
        PATH,
        [
            route("GET", "/models", routes.list_models),
            route("GET", "/models/{model}", routes.get_model),
            route("POST", "/responses", routes.create_response),
            route("GET", "/responses/{id}", routes.get_response),
            route("POST", "/responses/{id}/cancel", routes.cancel_response),
            route("POST", "/chat/completions", routes.create_completion),
        ],
        Access.TOKEN,
        max_body_bytes=MAX_HISTORY_BYTES + settings.max_args_bytes,
        end=turns.end,
        error_form=error_form,
    )


class OpenAiRoutes:
    """What is answered at each path."""

    def __init__(self, client: AsyncClient, turns: ResponseTurns) -> None:
        self._client = client
        self._turns = turns

    async def list_models(self, request: Request) -> Response:
        """List the agents that the caller may ask."""
        caller = caller_of(request.scope)
        names = sorted(await self._client.agents())
        return JSONResponse(
            {"object": "list", "data": [_model(name) for name in names if caller.may(CALL + name)]}
        )

    async def get_model(self, request: Request) -> Response:
        """Show one agent."""
        caller, name = caller_of(request.scope), path_names(request)["model"]
        if name not in await self._client.agents() or not (caller.may(CALL + name) or caller.may(READ)):
            raise AgentNotFoundError(f"There is no agent {name[:100]!r}.")
        return JSONResponse(_model(name))

    async def create_response(self, request: Request) -> Response:
        """Begin a response; with neither stream nor background, wait for its end."""
        asked: ResponseAsked = await asked_of(request, ResponseAsked)
        turn = await self._turns.begin(
            request,
            asked.model,
            asked.asks(),
            format_of(asked),
            is_background=bool(asked.background),
            previous=asked.previous_response_id,
        )
        if asked.stream:
            return self._streamed(turn, -1)
        return _json(turn.shown() if asked.background else await self._turns.response(turn))

    async def get_response(self, request: Request) -> Response:
        """Show a response as it is, or stream its events after a number."""
        query = request.query_params
        after = _number(query["starting_after"]) if "starting_after" in query else -1
        turn = await self._turns.find(request, path_names(request)["id"])
        if query.get("stream", "false").lower() == "true":
            return self._streamed(turn, after)
        return _json(await self._turns.response(turn) if turn.has_ended else turn.shown())

    async def cancel_response(self, request: Request) -> Response:
        """Cancel a response; one that has ended stays as it is."""
        response_id = path_names(request)["id"]
        await self._turns.cancel(await self._turns.find(request, response_id))
        turn = await self._turns.find(request, response_id)
        return _json(await self._turns.response(turn) if turn.has_ended else turn.shown())

    async def create_completion(self, request: Request) -> Response:
        """Answer the last message of a conversation."""
        asked: CompletionAsked = await asked_of(request, CompletionAsked)
        turn = await self._turns.begin(
            request, asked.model, asked.asks(), format_of(asked), instance=asked.user
        )
        has_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        completion = Completion(turn.head, has_usage)
        if asked.stream:
            chunks = self._chunks(turn, completion)
            return streamed(chunks, self._turns.over)
        response = await self._turns.response(turn)
        if response["error"] is not None:
            raise _failure(response)
        return _json(completion.whole(response))

    def _streamed(self, turn: KnownTurn, after: int) -> Response:
        return streamed(self._sent(turn, after), self._turns.over)

    async def _sent(self, turn: KnownTurn, after: int) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._turns.events(turn)) as parts:
                async for events in parts:
                    for event in later(events, after):
                        yield _frame(event, event["type"])
        except GoondanError as error:
            yield _frame({"type": "error", "error": error_body(error)}, "error")

    async def _chunks(self, turn: KnownTurn, completion: Completion) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._turns.events(turn)) as parts:
                async for events in parts:
                    for event in events:
                        if event["type"] == FAILED:
                            raise _failure(event["response"])
                        for chunk in completion.chunks(event):
                            yield _frame(chunk)
        except GoondanError as error:
            yield _frame({"error": error_body(error)})
        else:
            yield _DONE


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": "goondan"}


def _failure(response: JsonObject) -> RequestError:
    error = response["error"]
    return RequestError(f"{error['code']}: {error['message']}", status=500, suggestion="")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ParameterError("starting_after", "starting_after: send the sequence_number of the last event.")
    return int(text)


def _json(content: JsonObject) -> Response:
    return Response(serializer.encode(content, repairs=True), media_type="application/json")


def _frame(content: JsonObject, event: str | None = None) -> bytes:
    return frame(serializer.encode(content, repairs=True), event=event)
