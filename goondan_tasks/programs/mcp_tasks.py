"""MCP Tasks, the extension ``io.modelcontextprotocol/tasks`` of 2026-07-28: calls that clients poll.

A task is a call: its id is the call's, and its state is read from the call's record each time. So every
server of the agent can answer, one that was started later too. Only the ids of calls that were submitted for
clients of the extension are tasks; for any other call there is no task of that id.
"""

import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ClientCapabilities,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    EmptyResult,
    MissingRequiredClientCapabilityErrorData,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from broker_config import serializer
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    CallClosedError,
    CallNotPendingError,
    GoondanError,
    ToolCancelledError,
    ToolOutcomeUnknownError,
    ToolPoisonedError,
)
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallError, ToolCallResult, iso_time
from goondan_tasks.contract.wording import on_one_line
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.programs.mcp_calls import through_outages

EXTENSION = "io.modelcontextprotocol/tasks"
#: a call that ends within this time is answered at once, without a task
QUICK_SECONDS = 0.3
#: the Turns of tasks begin with this
_TURN = "mcp-task-"
#: clients are asked to poll ten times in a task's life, and within these limits
_LEAST_POLL_MS, _MOST_POLL_MS = 500, 5_000
#: the keys of input requests; a call asks for each once at most
_APPROVAL, _PAGE = "approval", "page"
#: how many characters of the arguments are shown to those who approve
_SHOWN_CHARACTERS = 2_000
#: the request has failed, not the tool: nothing is known about the tool's outcome
_LOST = frozenset({ToolOutcomeUnknownError.code, ToolPoisonedError.code})
_FORM: JsonObject = {
    "type": "object",
    "properties": {
        "confirm": {"type": "boolean", "title": "Approve", "description": "Whether the tool may run."},
        "reason": {"type": "string", "title": "Reason", "description": "Why it may not."},
        "arguments": {
            "type": "string",
            "title": "Other arguments",
            "description": "A JSON object that replaces the arguments; empty to run it with those above.",
        },
    },
    "required": ["confirm"],
}

Context = ServerRequestContext[None, Any]


class TaskParams(RequestParams):
    """The parameters of ``tasks/get`` and ``tasks/cancel``."""

    task_id: str


class UpdateParams(TaskParams):
    """The parameters of ``tasks/update``."""

    #: by the keys of the input requests; answers to others may be anything
    input_responses: dict[str, Any]


class Tasks:
    """Serves the calls of one agent as tasks.

    With an ``instance_key``, those of this instance; else those of the instances of MCP sessions.
    ``ttl_seconds`` is how long results are kept.
    """

    def __init__(
        self,
        client: AsyncClient,
        agent: str,
        instance_key: str | None,
        ttl_seconds: float,
        answer: Callable[[ToolCallResult], Awaitable[CallToolResult]],
        may_approve: Callable[[Context], bool],
        may_know: Callable[[Context, ToolCall], bool],
    ) -> None:
        self._client = client
        self._agent = agent
        self._instance_key = instance_key
        self._ttl_ms = int(ttl_seconds * 1000)
        self._answer = answer
        self._may_approve = may_approve
        self._may_know = may_know

    def serve(self, server: Server[None]) -> None:
        """Add the extension to a server."""
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", TaskParams, self._get)
        server.add_request_handler("tasks/update", UpdateParams, self._update)
        server.add_request_handler("tasks/cancel", TaskParams, self._cancel)

    async def created(self, call_id: str) -> JsonObject:
        """Return the CreateTaskResult of a call.

        Raises:
            MCPError: its record cannot be read.
        """
        return {"resultType": "task", **self._task(await self._record(call_id))}

    async def _get(self, ctx: Context, params: TaskParams) -> JsonObject:
        record = await self._asked_for(ctx, params)
        task, inputs = self._task(record), self._inputs(record, ctx)
        if inputs:
            return {**task, "status": "input_required", "inputRequests": inputs}
        if task["status"] == "completed":
            answer = await self._answer(_result_of(record))
            return {**task, "result": _dumped(answer)}
        if task["status"] == "failed" and (error := _error_of(record)) is not None:
            failure = {"code": INTERNAL_ERROR, "message": task["statusMessage"], "data": error.to_wire()}
            return {**task, "error": failure}
        return task

    async def _update(self, ctx: Context, params: UpdateParams) -> EmptyResult:
        record = await self._asked_for(ctx, params)
        for key in self._inputs(record, ctx).keys() & params.input_responses.keys():
            answer = _elicited(key, params.input_responses[key])
            with _refusals():
                if key == _APPROVAL:
                    await self._decide(record.id, answer, _name_of(ctx))
                elif answer.action == "decline":
                    await self._client.cancel(record.id)
        return EmptyResult()

    def _inputs(self, record: CallRecord, ctx: Context) -> dict[str, JsonObject]:
        """Return what a call needs from its client; who may not approve is not asked to."""
        asked = _inputs_of(record, ctx)
        return asked if self._may_approve(ctx) else {key: asked[key] for key in asked.keys() - {_APPROVAL}}

    async def _decide(self, call_id: str, answer: ElicitResult, by: str) -> None:
        content = answer.content or {}
        confirmed, reason = content.get("confirm"), content.get("reason")
        if answer.action == "cancel":
            return  # dismissed: the request stays
        if answer.action == "accept" and not isinstance(confirmed, bool):
            raise MCPError(INVALID_PARAMS, f"The response {_APPROVAL!r} has no boolean 'confirm'.")
        if answer.action == "accept" and confirmed:
            await self._client.approve(call_id, by, _edited(content.get("arguments")))
        else:
            await self._client.deny(call_id, reason=reason if isinstance(reason, str) else "", by=by)

    async def _cancel(self, ctx: Context, params: TaskParams) -> EmptyResult:
        record = await self._asked_for(ctx, params)
        with _refusals():
            await self._client.cancel(record.id)
        return EmptyResult()

    async def _asked_for(self, ctx: Context, params: TaskParams) -> CallRecord:
        """Return the record of the task that a request is about.

        Raises:
            MCPError: the client has not declared the extension, routes the request to another task, or names
                none of this server, or another user's.
        """
        require_declared(ctx)
        routed = None if ctx.request is None else ctx.request.headers.get(MCP_NAME_HEADER)
        if routed is not None and decode_header_value(routed) != params.task_id:
            raise MCPError(HEADER_MISMATCH, f"The header {MCP_NAME_HEADER} is not the request's taskId.")
        record = await self._record(params.task_id)
        if not self._may_know(ctx, record.call):
            raise _unknown(params.task_id)
        return record

    async def _record(self, task_id: str) -> CallRecord:
        """Read the record of a task.

        Raises:
            MCPError: it is unknown, has expired, or is not a task of this server.
        """
        try:
            record = await through_outages(lambda: self._client.record(task_id))
        except BrokerUnreachableError as error:
            raise MCPError(INTERNAL_ERROR, f"{error.code}: {error}") from error
        except GoondanError as error:
            raise _unknown(task_id) from error
        call, instance = record.call, self._instance_key
        is_ours = call.instance_key.startswith("mcp-") if instance is None else call.instance_key == instance
        if call.agent_name != self._agent or not is_ours or not call.turn_id.startswith(_TURN):
            raise _unknown(task_id)
        return record

    def _task(self, record: CallRecord) -> JsonObject:
        """Return the fields of the protocol's ``Task``."""
        now = int(time.time() * 1000) if record.finished_at is None else record.finished_at
        age = max(0, now - record.queued_at)
        message = _message_of(record, now)
        return {
            "taskId": record.id,
            "status": _status_of(record),
            "createdAt": iso_time(record.queued_at),
            "lastUpdatedAt": _updated_at(record),
            # from its end on
            "ttlMs": age + self._ttl_ms,
            "pollIntervalMs": min(max(age // 10, _LEAST_POLL_MS), _MOST_POLL_MS),
            **({} if message is None else {"statusMessage": message}),
        }


def takes_tasks(ctx: Context) -> bool:
    """Return whether a request's client has declared the extension, in a version of MCP that has it."""
    capabilities = ctx.session.client_capabilities
    declared = capabilities.extensions if capabilities else None
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (declared or {})


def require_declared(ctx: Context) -> None:
    """Refuse a request of the extension from a client that has not declared it.

    Raises:
        MCPError: it has not.
    """
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, f"MCP {ctx.protocol_version} has no {ctx.method}.")
    if not takes_tasks(ctx):
        wanted = ClientCapabilities(extensions={EXTENSION: {}})
        data = MissingRequiredClientCapabilityErrorData(required_capabilities=wanted)
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"The client has not declared the extension {EXTENSION}.",
            _dumped(data),
        )


def new_turn() -> str:
    """Return the id of the Turn of a new task, which makes the task's id one that nobody can guess."""
    return f"{_TURN}{secrets.token_hex(16)}"


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Ignore that a call has ended or was decided meanwhile: the next look at the task shows it."""
    try:
        yield
    except (CallClosedError, CallNotPendingError):
        pass
    except BrokerUnreachableError as error:
        raise MCPError(INTERNAL_ERROR, f"{error.code}: {error}") from error
    except GoondanError as error:
        raise MCPError(INVALID_PARAMS, f"{error.code}: {error}") from error


def _unknown(task_id: str) -> MCPError:
    return MCPError(INVALID_PARAMS, f"There is no task {task_id[:100]!r}: it is unknown, or has expired.")


def _status_of(record: CallRecord) -> Literal["working", "completed", "failed", "cancelled"]:
    if record.finished_at is None and not record.has_ended:
        return "working"
    error = _error_of(record)
    if error is None:
        return "completed"
    if error.code == ToolCancelledError.code:
        return "cancelled"
    return "failed" if error.code in _LOST else "completed"


def _message_of(record: CallRecord, now: float) -> str | None:
    status = _status_of(record)
    if status == "working":
        if record.status == "running":
            return None if record.progress is None else record.progress.text
        return record.state_text(now)
    error = _error_of(record)
    return None if error is None else f"{error.code}: {error.message}"


def _updated_at(record: CallRecord) -> str:
    moments = (record.queued_at, record.claimed_at, record.suspended_at, record.finished_at)
    latest = iso_time(max(moment for moment in moments if moment is not None))
    return latest if record.progress is None else max(latest, record.progress.updated_at)


def _result_of(record: CallRecord) -> ToolCallResult:
    return ToolCallResult.from_json(record.result or b"")


def _error_of(record: CallRecord) -> ToolCallError | None:
    try:
        return _result_of(record).error
    except ValueError as damage:
        lost = ToolOutcomeUnknownError(f"The result of the call cannot be read: {damage}"[:500])
        return ToolCallError(code=lost.code, name=type(lost).__name__, message=str(lost))


def _inputs_of(record: CallRecord, ctx: Context) -> dict[str, JsonObject]:
    """Return what a call needs from its client, of that which the client can ask its user for."""
    capabilities = ctx.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None:
        return {}
    if record.awaits == "approval" and (elicitation.form is not None or elicitation.url is None):
        asked: ElicitRequestFormParams | ElicitRequestURLParams = ElicitRequestFormParams.model_validate(
            {"message": _question(record), "requestedSchema": _FORM}
        )
        return {_APPROVAL: _dumped(ElicitRequest(params=asked))}
    if record.awaits == "completion" and elicitation.url is not None and (url := _page_of(record)):
        asked = ElicitRequestURLParams(message=f"{record.call.tool_name} goes on at this page.", url=url)
        return {_PAGE: _dumped(ElicitRequest(params=asked))}
    return {}


def _dumped(model: BaseModel) -> JsonObject:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _question(record: CallRecord) -> str:
    args = serializer.encode(record.call.args).decode()
    if len(args) > _SHOWN_CHARACTERS:
        args = f"{args[:_SHOWN_CHARACTERS]}… ({len(args)} characters)"
    return f"May the agent {record.call.agent_name} run {record.call.tool_name} with {args}?"


def _page_of(record: CallRecord) -> str | None:
    """Return the page that a pending call names, as its handle or as ``url`` of its interim output."""
    try:
        output = _result_of(record).output
    except ValueError:
        return None
    named = [output.get("url") if isinstance(output, dict) else None, record.handle]
    pages = [page for page in named if isinstance(page, str) and page.startswith(("https://", "http://"))]
    return pages[0] if pages else None


def _elicited(key: str, response: Any) -> ElicitResult:
    try:
        return ElicitResult.model_validate(response, by_name=False)
    except ValidationError as error:
        raise MCPError(INVALID_PARAMS, f"The response {key!r} is no ElicitResult.") from error


def _edited(text: Any) -> JsonObject | None:
    """Return the arguments that replace those of a call; forms have texts and numbers only.

    Raises:
        MCPError: they are not a JSON object.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        return None
    try:
        args = serializer.decode(text.encode()) if isinstance(text, str) else None
    except ValueError:
        args = None
    if not isinstance(args, dict):
        raise MCPError(INVALID_PARAMS, f"The response {_APPROVAL!r} has 'arguments' that are no JSON object.")
    return args


def _name_of(ctx: Context) -> str:
    client = ctx.session.client_params
    return "an MCP client" if client is None else on_one_line(f"MCP client {client.client_info.name}")[:200]
