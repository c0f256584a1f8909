"""Answers the requests to a Connection in the process of its connector: on its event loop, or in threads."""

import asyncio
import base64
import inspect
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, Protocol

from goondan_tasks.authoring.webhooks import MAX_BODY_BYTES, Handler, HttpRequest, HttpResponse, json_response
from goondan_tasks.contract.errors import ConnectorError, GoondanError, WebhookRefusedError
from goondan_tasks.contract.messages import JsonObject

#: how many requests a plain handler answers at once
THREADS = 16
_LONGEST_TRACE = 4_000


class RequestChannel(Protocol):
    """What passes requests on, and takes the answers."""

    #: gets each message about requests; set while a handler is registered
    on_request: Callable[[Mapping[str, Any]], object] | None

    def write(self, message: JsonObject) -> None:
        """Write a message."""


async def serve_on_loop(channel: RequestChannel, handler: Handler) -> NoReturn:
    """Answer requests on the running event loop, until this is cancelled."""
    loop, tasks = asyncio.get_running_loop(), dict[int, asyncio.Task[None]]()

    async def answer(message: Mapping[str, Any]) -> None:
        try:
            returned = handler(request_of(message))
            reply = reply_of(await returned if inspect.isawaitable(returned) else returned)
        except asyncio.CancelledError:
            reply = {"error": {"message": "It was called off."}}
        except Exception as error:  # noqa: BLE001 - the handler's own code may raise anything
            reply = failed(error)
        channel.write({"type": "response", "id": message["id"], **reply})

    def take(message: Mapping[str, Any]) -> None:
        number = message["id"]
        if message["type"] == "request":
            tasks[number] = loop.create_task(answer(message))
            tasks[number].add_done_callback(lambda _: tasks.pop(number, None))
        elif number in tasks:
            tasks[number].cancel()

    _register(channel, lambda message: loop.call_soon_threadsafe(take, message))
    while True:
        await asyncio.Event().wait()


def serve_in_threads(channel: RequestChannel, handler: Handler) -> NoReturn:
    """Answer requests in threads, until the process ends."""
    if inspect.iscoroutinefunction(handler):
        raise ConnectorError(
            "The handler is a coroutine, and connect is not.", suggestion="Write async def connect(ctx)."
        )

    def answer(message: Mapping[str, Any]) -> None:
        try:
            reply = reply_of(handler(request_of(message)))
        except BaseException as error:  # noqa: BLE001 - the handler's own code may raise anything
            reply = failed(error)
        channel.write({"type": "response", "id": message["id"], **reply})

    pool = ThreadPoolExecutor(THREADS, "request")
    # a thread cannot be interrupted, so a request that is called off is answered all the same
    _register(channel, lambda one: pool.submit(answer, one) if one["type"] == "request" else None)
    while True:
        threading.Event().wait()


def _register(channel: RequestChannel, take: Callable[[Mapping[str, Any]], object]) -> None:
    if channel.on_request is not None:
        raise ConnectorError("ctx.http was called twice.", suggestion="Let one handler look at request.path.")
    channel.on_request = take
    channel.write({"type": "serving"})


def request_of(message: Mapping[str, Any]) -> HttpRequest:
    """Return the request in a message."""
    return HttpRequest(
        message["method"],
        message["path"],
        message["query"],
        message["headers"],
        base64.b64decode(message["body"]),
    )


def reply_of(answer: Any) -> JsonObject:
    """Return what a handler has returned as a message has it.

    Raises:
        TypeError, ValueError: it is no answer; the text says why.
    """
    if answer is None:
        answer = HttpResponse()
    elif isinstance(answer, dict):
        answer = json_response(200, answer)
    if not isinstance(answer, HttpResponse):
        kind = type(answer).__name__
        raise TypeError(f"the handler returned a {kind}; return None, a dict or an HttpResponse")
    body, headers = answer.body, dict(answer.headers)
    if isinstance(body, str):
        body = body.encode()
        if all(name.lower() != "content-type" for name in headers):
            headers["content-type"] = "text/plain; charset=utf-8"
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"the answer has {len(body):,} bytes, more than {MAX_BODY_BYTES:,}")
    return {"status": answer.status, "headers": headers, "body": base64.b64encode(body).decode()}


def failed(error: BaseException) -> JsonObject:
    """Return the message's part about an error; the trace of one that is not ours is for the log."""
    if isinstance(error, GoondanError):
        described: JsonObject = {"code": error.code, "message": error.message[:_LONGEST_TRACE]}
        if isinstance(error, WebhookRefusedError):
            described["status"] = error.status
        return {"error": described}
    text = "".join(traceback.format_exception_only(error)).strip()[:_LONGEST_TRACE]
    return {"error": {"message": text}, "trace": "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]}
