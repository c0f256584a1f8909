"""Calls the entry of a Connector of ``agents.example.io/v1alpha1``, for each thing that its triggers name.

This is the adapter of the older contracts to ``connect(ctx)``; ``machine/node/triggers.mjs`` is the same for
TypeScript and JavaScript. It runs in the connector's process. The program that has started the process knows
when a text of cron is due, reads the lines and asks for tokens; this asks for them (see :mod:`.child`).

``connect(ctx)`` is called for each trigger of a declaring Connector, with upstream's context of v1.0; the
functions of a canonical Connector are called with ``(event, connection, ctx)``, as in v0.8.
"""

import asyncio
import contextlib
import inspect
import itertools
import json
import threading
import traceback
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from goondan_tasks.authoring.connector_api import Connect, ConnectorEvent, HttpRequest, HttpResponse
from goondan_tasks.authoring.entry import connect_in, function_in
from goondan_tasks.contract.messages import JsonObject, iso_time, wall_clock

#: the longest sleep until a slot; then the other clock is asked again (seconds)
_LONGEST_SLEEP = 30.0
#: what the events of canonical Connectors are called, by the type of the trigger
_EVENT_TYPES = {"http": "webhook", "cron": "cron", "cli": "message", "custom": "custom"}


@dataclass(frozen=True, slots=True)
class ConnectorOAuth:
    """``ctx.oauth`` of a Connection with an OAuthApp (000 §12.5)."""

    ask: Callable[[str, Any], Any]

    def get_access_token(self, request: Mapping[str, Any] | None = None) -> Any:
        """Return the document's OAuthTokenResult, ``{status: ready, accessToken, …}`` or why there is none.

        ``request`` is ``{subject?, auth?, oauthAppRef?, scopes?, minTtlSeconds?, instanceKey?}``. The token
        is that of ``subject``, or of the subjects of ``auth``. A coroutine in async code.
        """
        return self.ask("oauth.token", dict(request or {}))


@dataclass(frozen=True, slots=True)
class TriggeredContext:
    """What an entry of the older version gets; its methods are coroutines in async code, or block."""

    #: ``{type: connector.trigger, trigger: {type, payload}, timestamp}``
    event: JsonObject
    #: the resources, with the tokens and secrets of ``auth`` and ``verify`` in place of their sources
    connection: JsonObject
    connector: JsonObject
    #: hands an event over
    emit: Callable[[Any], Any]
    logger: Any
    oauth: ConnectorOAuth | None
    #: ``{webhook: {signingSecret}}``, or ``None``
    verify: JsonObject | None
    # ours
    config: Mapping[str, str]
    secrets: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trigger:
    """One of a Connector's triggers, and the function that is called for it."""

    number: int
    declared: JsonObject
    function: Callable[..., Any]
    #: what the start message says of the Connector
    called: JsonObject
    #: of :mod:`.child`
    ctx: Any
    stopping: threading.Event

    async def ask(self, name: str, value: Any) -> Any:
        return await self.ctx.wait(self.ctx.channel.ask(name, value))

    async def call(self, payload: JsonObject, call_id: str | None = None) -> Any:
        """Call the function; what it emits without an id is known by ``call_id``."""
        numbers = itertools.count(1)
        is_async = inspect.iscoroutinefunction(inspect.unwrap(self.function))
        loop = asyncio.get_running_loop()

        def asked(coroutine: Any) -> Any:
            return coroutine if is_async else asyncio.run_coroutine_threadsafe(coroutine, loop).result()

        def emit(event: Any) -> Any:
            wire = event.to_wire() if isinstance(event, ConnectorEvent) else event
            own = None if call_id is None else f"{call_id}:{next(numbers)}"
            received = None if self.declared["type"] == "custom" else payload
            return asked(self.ctx.emit({"event": wire, "id": own, "payload": received}))

        kind, now = self.declared["type"], iso_time(wall_clock())
        trigger = {"type": kind, "payload": payload}
        is_canonical = self.called["canonical"]
        event = (
            {"type": _EVENT_TYPES[kind], "payload": payload, "timestamp": now}
            if is_canonical
            else {"type": "connector.trigger", "trigger": trigger, "timestamp": now}
        )
        context = TriggeredContext(
            event=event,
            connection=self.called["connection"],
            connector=self.called["connector"],
            emit=emit,
            logger=self.ctx.logger,
            oauth=ConnectorOAuth(lambda name, value: asked(self.ask(name, value)))
            if self.called["oauth"]
            else None,
            verify=self.called["verify"],
            config=self.ctx.config,
            secrets=self.ctx.secrets,
        )
        arguments = (event, self.called["connection"], context) if is_canonical else (context,)
        if is_async:
            return await self.function(*arguments)
        return await asyncio.to_thread(self.function, *arguments)

    async def try_call(self, payload: JsonObject, call_id: str | None = None) -> None:
        """Call the function; its exception is logged, and ends nothing."""
        try:
            await self.call(payload, call_id)
        except Exception as error:  # noqa: BLE001 - the connector's own code may raise anything
            trace = "".join(traceback.format_exception(error))[-4_000:]
            self.ctx.logger.error("connector.call-failed", trigger=self.declared["type"], trace=trace)


def triggered(module: ModuleType, called: JsonObject) -> Connect:
    """Return what runs the triggers of a Connector, until all of them have ended.

    Raises:
        EntryError: the entry lacks a function that they name.
    """
    functions = [
        connect_in(module) if one["handler"] is None else function_in(module, one["handler"], 3)
        for one in called["triggers"]
    ]

    async def connect(ctx: Any) -> None:
        stopping = threading.Event()
        triggers = [
            Trigger(number, declared, function, called, ctx, stopping)
            for number, (declared, function) in enumerate(zip(called["triggers"], functions, strict=True))
        ]
        try:
            asked = [one for one in triggers if one.declared["type"] == "http"]
            running = [_SOURCES[one.declared["type"]](one) for one in triggers if one not in asked]
            await asyncio.gather(*running, *([_requests(asked)] if asked else []))
        finally:
            stopping.set()

    return connect


async def _slots(trigger: Trigger) -> None:
    while (due := await trigger.ask("cron.next", trigger.number)) is not None:
        if "slot" not in due:
            await asyncio.sleep(min(due["inSeconds"], _LONGEST_SLEEP))
            continue
        payload = {"schedule": trigger.declared["schedule"], "scheduledAt": due["scheduledAt"]}
        await trigger.try_call(payload, f"cron:{trigger.number}:{due['scheduledAt']}")
        await trigger.ask("cron.done", {"trigger": trigger.number, "slot": due["slot"]})


async def _lines(trigger: Trigger) -> None:
    while (line := await trigger.ctx.read_line()) is not None:
        await trigger.try_call({"text": line.text}, f"line:{line.program}:{line.number}")


async def _own(trigger: Trigger) -> None:
    await trigger.call({"signal": trigger.stopping})


def received(request: HttpRequest, path: str, *, is_canonical: bool) -> JsonObject:
    """Return a request as the payload of its trigger; ``path`` is the declared one."""
    text = request.body.decode("utf-8", "replace")
    body: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(text)
    if not isinstance(body, dict):  # JSON goes first: curl says that whatever it sends is a form
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        body = dict(parse_qsl(text)) if is_form else {}
    fields = {
        "method": request.method,
        "path": path,
        "headers": dict(request.headers),
        "body": body,
        "rawBody": text,
    }
    return {"requestId": uuid.uuid4().hex, **fields} if is_canonical else {"request": fields}


async def _requests(triggers: Sequence[Trigger]) -> None:
    """Answer requests, each by the trigger of its method; what the function returns is the answer."""
    by_method = {one.declared["endpoint"]["method"]: one for one in reversed(triggers)}

    async def handler(request: HttpRequest) -> Any:
        trigger = by_method.get(request.method)
        if trigger is None:
            return HttpResponse(405)
        path, is_canonical = trigger.declared["endpoint"]["path"], trigger.called["canonical"]
        return await trigger.call(received(request, path, is_canonical=is_canonical))

    await triggers[0].ctx.http(handler)


_SOURCES: Mapping[str, Callable[[Trigger], Any]] = {
    "cron": _slots,
    "cli": _lines,
    "custom": _own,
}
