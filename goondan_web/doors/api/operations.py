"""One table of operations, from which both the routes and the OpenAPI document are made."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from broker_config import serializer
from goondan_tasks.contract.errors import CallNotFoundError, GoondanError, ToolInputValidationError
from goondan_tasks.contract.messages import ToolCall, faults_of
from goondan_tasks.contract.wording import closest
from goondan_tasks.fleet.http_tokens import CALL, READ
from goondan_web.answers import JSON, RequestError, require_json
from goondan_web.callers import Caller, caller_of, require
from goondan_web.doors.api.wire import Omissible, Query
from goondan_web.paths import path_names

_CORRECT = RequestError.suggestion
#: how much of an id is shown in an error, in characters
_LONGEST_SHOWN = 200
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose parts are read and valid, by the models of its operation."""

    request: Request
    #: the names in the path, decoded
    path: Mapping[str, str]
    query: Any
    body: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a record, its status, and headers of its own."""

    content: BaseModel
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Asked], Awaitable[Reply | Response]]
#: returns the agent of a call, given its id; raises CallNotFoundError
CallOf = Callable[[str], Awaitable[ToolCall]]


@dataclass(frozen=True, slots=True)
class Content:
    """What an answer contains: a record, or something else with a media type of its own."""

    description: str
    model: type[BaseModel] | None = None
    media_type: str = JSON
    #: names of headers, and what they say
    headers: Mapping[str, str] = field(default_factory=dict)
    #: of a stream: what it consists of
    items: tuple[type[BaseModel], ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be asked of the API: one method at one path."""

    method: str
    #: a template, whose names match what has no slash, or an encoded one
    path: str
    #: the group of the document
    tag: str
    #: what the caller's token must allow; ``{agent}`` is taken from the path, or is that of the call ``{id}``
    scope: str
    #: gives the operation its name, and its docstring the summary
    handler: Handler
    answers: Mapping[int, Content]
    #: the errors that it may be answered with besides those of all operations
    errors: tuple[type[GoondanError], ...] = ()
    query: type[Query] = Query
    body: type[BaseModel] | None = None
    #: request headers, each with its schema and what it says
    headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: whether it is about a call ``{id}``, which a caller without ``read`` knows only if it has
    #: the caller's user, and the caller may call its agent; such a caller may read it without the scope
    is_for_askers: bool = False

    @property
    def name(self) -> str:
        """The name that clients made from the document use."""
        return to_camel(getattr(self.handler, "__name__", ""))

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (self.handler.__doc__ or "").partition("\n")[0]

    def route(self, call_of: CallOf) -> Route:
        """Return the route that answers it, to those who may ask."""

        async def answer(request: Request) -> Response:
            names = path_names(request)
            await self._admit(request, names, call_of)
            query = _query_of(request, self.query)
            body = None if self.body is None else await body_of(request, self.body)
            reply = await self.handler(Asked(request, names, query, body))
            if isinstance(reply, Response):
                return reply
            data = serializer.encode(reply.content.model_dump(by_alias=True), repairs=True)
            return Response(data, reply.status, reply.headers, JSON)

        return RawRoute(self.path, answer, methods=[self.method], name=self.name)

    async def _admit(self, request: Request, names: Mapping[str, str], call_of: CallOf) -> None:
        caller, agent = caller_of(request.scope), names.get("agent", "AGENT")
        knows_all = caller.may(READ) and caller.may(self.scope)
        if self.is_for_askers and caller.may_call and not knows_all:
            call = await _known_call(caller, names["id"], call_of)
            if self.scope == READ:
                return
            agent = call.agent_name
        require(request, self.scope.replace("{agent}", agent))


async def _known_call(caller: Caller, call_id: str, call_of: CallOf) -> ToolCall:
    """Return a call that a caller may know.

    Raises:
        CallNotFoundError: there is none, or it is another's; the answer does not tell which.
    """
    with suppress(CallNotFoundError):
        call = await call_of(call_id)
        is_own = call.auth == caller.auth and caller.may(CALL + call.agent_name)
        if is_own or caller.may(READ):
            return call
    raise CallNotFoundError(
        f"No call {call_id[:_LONGEST_SHOWN]!r} of {caller.name}: it is unknown or expired, or was begun for "
        "another user or with another agent.",
        suggestion="Check the id, and the user of the token; `read` shows the calls of all users.",
    )


class RawRoute(Route):
    """A route whose names match the path as it was sent, so that they may contain encoded slashes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare the path without its encoding decoded."""
        raw = scope.get("raw_path")
        if scope["type"] != "http" or not raw:
            return super().matches(scope)
        return super().matches({**scope, "path": raw.partition(b"?")[0].decode("latin-1")})


def _query_of(request: Request, model: type[Query]) -> Query:
    given = request.query_params.multi_items()
    fields = dict(given)
    if len(fields) < len(given):
        raise ToolInputValidationError("The query has a parameter twice.", suggestion=_CORRECT)
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal("query", model, error) from error


async def body_of(request: Request, model: type[Body]) -> Body:
    """Read the body of a request; an ``Omissible`` one may be left out.

    Raises:
        RequestError: it is not sent as JSON.
        ToolInputValidationError: it does not fit the model.
    """
    data = await request.body()
    if not data and issubclass(model, Omissible):
        return model()
    require_json(request.headers)
    try:
        return model.model_validate(serializer.decode(data))
    except serializer.NotJsonError as error:
        raise ToolInputValidationError(f"The body is not JSON: {error}.", suggestion=_CORRECT) from error
    except ValidationError as error:
        raise _refusal("body", model, error, "body") from error


def _refusal(
    what: str, model: type[BaseModel], error: ValidationError, *within: str
) -> ToolInputValidationError:
    return ToolInputValidationError(
        f"The {what} is not valid: {faults_of(error, *within)}.", suggestion=_meant(model, error) or _CORRECT
    )


def _meant(model: type[BaseModel], error: ValidationError) -> str | None:
    """Return which field was meant by the first unknown one, if it resembles one."""
    fields = [one.alias or name for name, one in model.model_fields.items()]
    unknown = [str(fault["loc"][0]) for fault in error.errors() if fault["type"] == "extra_forbidden"]
    meant = closest(unknown[0], fields) if unknown else None
    return None if meant is None else f"Did you mean {meant!r}?"
