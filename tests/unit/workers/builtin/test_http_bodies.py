"""What ``http-fetch`` makes of the bodies that servers send."""

import gzip
import time
import tracemalloc
import zlib
from http.server import BaseHTTPRequestHandler

import pytest

from goondan_tasks.contract.errors import ToolError
from tests.unit.workers.builtin.conftest import CallTool
from tests.unit.workers.builtin.local_server import LocalServer
from workers.builtin import http_fetch

pytestmark = pytest.mark.usefixtures("loopback_allowed")


def pour(handler: BaseHTTPRequestHandler, chunk: bytes = b"x" * 65_536) -> None:
    """Send for ever, or until the client hangs up."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        handler.wfile.write(chunk)


def test_body_of_redirect_is_not_read(call: CallTool, server: LocalServer) -> None:
    def redirect_for_ever(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/end")
        handler.end_headers()
        pour(handler)

    server.routes["/"] = redirect_for_ever

    assert call("http-fetch__get", url=server.url)["body"] == "hello"


def test_body_that_never_ends_is_cut(call: CallTool, server: LocalServer) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        pour(handler)

    server.routes["/"] = answer

    result = call("http-fetch__get", url=server.url)

    assert (result["body"], result["truncated"]) == ("x" * 500_000, True)


def test_body_exactly_as_long_as_limit_is_whole(call: CallTool, server: LocalServer) -> None:
    result = call("http-fetch__get", url=server.url, maxBytes=5)

    assert (result["body"], result["truncated"]) == ("hello", False)


@pytest.mark.parametrize("limit", range(1, 9))
def test_body_is_never_cut_inside_character(call: CallTool, server: LocalServer, limit: int) -> None:
    server.answer("/", "é한🙂".encode())

    result = call("http-fetch__get", url=server.url, maxBytes=limit)

    assert "é한🙂".startswith(result["body"])
    assert result["truncated"]


def test_limit_of_body_has_limit(
    call: CallTool, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_fetch, "MAX_BODY_BYTES", 1_000)
    server.answer("/", b"x" * 2_000)

    assert len(call("http-fetch__get", url=server.url, maxBytes=10**30)["body"]) == 1_000


def compressed(data: bytes, encoding: str) -> bytes:
    return gzip.compress(data) if encoding == "gzip" else zlib.compress(data)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_body_is_decompressed(call: CallTool, server: LocalServer, encoding: str) -> None:
    server.answer("/", compressed(b"plain text", encoding), headers={"Content-Encoding": encoding})

    assert call("http-fetch__get", url=server.url)["body"] == "plain text"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_bomb_is_cut_while_it_unfolds(call: CallTool, server: LocalServer, encoding: str) -> None:
    server.answer("/", compressed(b"\0" * 200_000_000, encoding), headers={"Content-Encoding": encoding})
    tracemalloc.start()
    try:
        result = call("http-fetch__get", url=server.url, maxBytes=1_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (result["body"], result["truncated"]) == ("\0" * 1_000, True)
    assert peak < 20_000_000


def test_body_not_compressed_as_declared_is_reported(call: CallTool, server: LocalServer) -> None:
    server.answer("/", b"not gzip", headers={"Content-Encoding": "gzip"})

    with pytest.raises(ToolError, match="failed"):
        call("http-fetch__get", url=server.url)


def test_body_shorter_than_announced_is_error(call: CallTool, server: LocalServer) -> None:
    server.answer("/", b"short", headers={"Content-Length": "100", "Connection": "close"})

    def hang_up(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"short")

    server.routes["/"] = hang_up

    with pytest.raises(ToolError, match="complete message body"):
        call("http-fetch__get", url=server.url)


def test_body_longer_than_announced_is_cut(call: CallTool, server: LocalServer) -> None:
    server.answer("/", b"longer than said", headers={"Content-Length": "6"})

    assert call("http-fetch__get", url=server.url)["body"] == "longer"


@pytest.mark.parametrize(
    ("charset", "body", "text"),
    [
        ("iso-8859-1", b"caf\xe9", "café"),
        ("euc-kr", "한글".encode("euc-kr"), "한글"),
        ("utf-16", "hi".encode("utf-16"), "hi"),
        ("no-such-charset", "é".encode(), "é"),
        ("punycode", b"abc-", "abc-"),
        ("unicode_escape", rb"\ud800", r"\ud800"),
        ("utf-7", b"+2AA-", "+2AA-"),
        ("rot13", b"abc", "abc"),
        ("hex", b"616263", "616263"),
        ("utf-8", b"\xff\xfe", "\ufffd\ufffd"),
        ("x\0y", b"abc", "abc"),
    ],
)
def test_declared_charset_is_used_only_if_textual(
    call: CallTool, server: LocalServer, charset: str, body: bytes, text: str
) -> None:
    server.answer("/", body, headers={"Content-Type": f"text/plain; charset={charset}"})

    if "\0" in charset:
        with pytest.raises(ToolError):
            call("http-fetch__get", url=server.url)
    else:
        assert call("http-fetch__get", url=server.url)["body"] == text
