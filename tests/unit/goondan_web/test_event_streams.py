"""Server-sent events, whatever door sends them."""

import asyncio
from collections.abc import AsyncGenerator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from goondan_web.event_streams import streamed


def test_head_of_stream_begins_nothing() -> None:
    begun = list[str]()

    async def frames() -> AsyncGenerator[bytes]:
        begun.append("begun")
        yield b"data: 1\n\n"

    async def answer(_: Request) -> Response:
        return streamed(frames(), asyncio.Event(), headers={"X-Run": "r-1"})

    with TestClient(Starlette(routes=[Route("/", answer)])) as http:
        head = http.head("/")
        assert (head.status_code, head.content, begun) == (200, b"", [])
        assert head.headers["content-type"].startswith("text/event-stream")
        whole = http.get("/")

    assert (whole.content, begun) == (b"data: 1\n\n", ["begun"])
    assert dict(whole.headers) == dict(head.headers)
