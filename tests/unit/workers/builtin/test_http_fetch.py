import asyncio
import gzip
import json
import socket
import ssl
import time
import tracemalloc
import zlib
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from goondan_tasks.errors import AddressForbiddenError, ToolError, ToolInputValidationError, ToolTimeoutError
from goondan_tasks.tool_api import ToolContext
from tests.unit.workers.builtin.conftest import CallTool
from tests.unit.workers.builtin.local_server import LocalServer
from workers.builtin.http_fetch import handlers as http_fetch

RESULT_KEYS = ["url", "method", "status", "statusText", "headers", "body", "truncated", "durationMs"]


@pytest.fixture(autouse=True)
def allow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the server's address, and no other one that is not public."""
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "127.0.0.1")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[str]]]:
    """Names and the answers to each question for them; the last answer stays."""
    answers: dict[str, list[list[str]]] = {}
    ask_the_system = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in answers:
            return ask_the_system(host, *args, **kwargs)
        rest = answers[name]
        addresses = rest.pop(0) if len(rest) > 1 else rest[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return answers


@pytest.mark.requirement("builtin.http-fetch.get")
def test_get_returns_status_headers_and_body(call: CallTool, server: LocalServer) -> None:
    server.answer("/page?q=1", "héllo".encode(), headers={"X-One": "1", "Content-Type": "text/plain"})

    result = call(
        "http-fetch__get", url=f"{server.url}/page?q=1", headers={"X-Token": "t", "N": 1.5, "B": True}
    )

    assert list(result) == RESULT_KEYS
    assert (result["url"], result["method"]) == (f"{server.url}/page?q=1", "GET")
    assert (result["status"], result["statusText"]) == (200, "OK")
    assert result["headers"]["x-one"] == "1"
    assert (result["body"], result["truncated"]) == ("héllo", False)
    [seen] = server.seen
    assert (seen.headers["x-token"], seen.headers["n"], seen.headers["b"]) == ("t", "1.5", "true")
    assert seen.headers["user-agent"] == "goondan-http-fetch"
    assert seen.headers["host"] == f"127.0.0.1:{server.port}"


@pytest.mark.requirement("builtin.http-fetch.post")
def test_post_sends_an_object_as_json(call: CallTool, server: LocalServer) -> None:
    result = call("http-fetch__post", url=server.url, body={"a": ["é", None]}, bodyString="ignored")

    assert (result["method"], result["body"]) == ("POST", "hello")
    [seen] = server.seen
    assert (seen.method, json.loads(seen.body)) == ("POST", {"a": ["é", None]})
    assert seen.headers["content-type"] == "application/json"


@pytest.mark.requirement("builtin.http-fetch.post")
def test_post_keeps_the_given_content_type(call: CallTool, server: LocalServer) -> None:
    call("http-fetch__post", url=server.url, body={}, headers={"Content-Type": "application/vnd.x+json"})

    assert server.seen[0].headers["content-type"] == "application/vnd.x+json"


@pytest.mark.parametrize(("args", "sent"), [({"bodyString": "a=é"}, "a=é"), ({}, "")])
def test_post_sends_text_as_it_is(
    call: CallTool, server: LocalServer, args: dict[str, str], sent: str
) -> None:
    call("http-fetch__post", url=server.url, **args)

    assert server.seen[0].body.decode() == sent
    assert "content-type" not in server.seen[0].headers


@pytest.mark.parametrize("status", [204, 404, 500])
def test_any_status_is_a_normal_result(call: CallTool, server: LocalServer, status: int) -> None:
    server.answer("/", status=status)

    assert call("http-fetch__get", url=server.url)["status"] == status


def test_redirects_are_followed_and_the_last_address_is_told(call: CallTool, server: LocalServer) -> None:
    server.answer("/a", status=301, headers={"Location": "/b"})
    server.answer("/b", status=307, headers={"Location": f"{server.url}/c"})

    result = call("http-fetch__get", url=f"{server.url}/a")

    assert (result["url"], result["body"], result["status"]) == (f"{server.url}/c", "hello", 200)


@pytest.mark.parametrize(("status", "method", "body"), [(303, "GET", b""), (307, "POST", b"text")])
def test_post_is_redirected_as_the_status_says(
    call: CallTool, server: LocalServer, status: int, method: str, body: bytes
) -> None:
    server.answer("/a", status=status, headers={"Location": "/b"})

    result = call("http-fetch__post", url=f"{server.url}/a", bodyString="text")

    assert result["method"] == method
    assert (server.seen[1].method, server.seen[1].body) == (method, body)


def test_authorization_is_not_sent_to_another_origin(
    call: CallTool, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "127.0.0.1,localhost")
    server.answer("/a", status=302, headers={"Location": f"http://localhost:{server.port}/b"})

    call("http-fetch__get", url=f"{server.url}/a", headers={"Authorization": "Bearer secret"})

    assert [request.headers.get("authorization") for request in server.seen] == ["Bearer secret", None]


def test_endless_redirects_are_told(call: CallTool, server: LocalServer) -> None:
    server.answer("/", status=302, headers={"Location": "/"})

    with pytest.raises(ToolError, match="More than 20 redirects"):
        call("http-fetch__get", url=server.url)

    assert len(server.seen) == 21


def test_body_of_a_redirect_is_not_read(call: CallTool, server: LocalServer) -> None:
    def redirect_for_ever(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/end")
        handler.end_headers()
        pour(handler)

    server.routes["/"] = redirect_for_ever

    assert call("http-fetch__get", url=server.url)["body"] == "hello"


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.2/",
        "//169.254.169.254/latest/meta-data",
        "http://[::ffff:10.0.0.1]/",
        "http://0/",
    ],
)
def test_redirect_to_a_forbidden_address_is_refused(
    call: CallTool, server: LocalServer, location: str
) -> None:
    server.answer("/", status=302, headers={"Location": location})

    with pytest.raises(AddressForbiddenError):
        call("http-fetch__get", url=server.url)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://127.0.0.1:99999/"])
def test_redirect_to_something_that_is_not_http_is_refused(
    call: CallTool, server: LocalServer, location: str
) -> None:
    server.answer("/", status=302, headers={"Location": location})

    with pytest.raises(ToolError, match=r"protocol|Invalid URL"):
        call("http-fetch__get", url=server.url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.2", "[::1]", "127.2", "2130706434", "[::ffff:127.0.0.2]", "10.0.0.1", "0.0.0.0"],
)
def test_address_that_is_neither_public_nor_allowed_is_refused(
    call: CallTool, server: LocalServer, host: str
) -> None:
    with pytest.raises(AddressForbiddenError) as caught:
        call("http-fetch__get", url=f"http://{host}:{server.port}/")

    assert caught.value.code == "E_ADDRESS_FORBIDDEN"
    assert server.seen == []


def test_proxy_of_the_environment_is_not_used(
    call: CallTool, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")

    assert call("http-fetch__get", url=server.url)["body"] == "hello"


def test_connection_goes_to_the_very_address_that_was_checked(
    call: CallTool, names: dict[str, list[list[str]]]
) -> None:
    names["rebind.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    with LocalServer("127.0.0.1") as allowed, LocalServer("127.0.0.2", allowed.port) as forbidden:
        url = f"http://rebind.test:{allowed.port}/"

        assert call("http-fetch__get", url=url)["body"] == "hello"
        assert allowed.seen[0].headers["host"] == f"rebind.test:{allowed.port}"
        with pytest.raises(AddressForbiddenError, match=r"rebind\.test \(127\.0\.0\.2\)"):
            call("http-fetch__get", url=url)
        assert forbidden.seen == []


def test_name_that_changes_between_a_redirect_and_its_target_is_checked_again(
    call: CallTool, server: LocalServer, names: dict[str, list[list[str]]]
) -> None:
    names["rebind.test"] = [["127.0.0.1"], ["127.0.0.2"]]
    server.answer("/", status=302, headers={"Location": "/again"})

    with pytest.raises(AddressForbiddenError):
        call("http-fetch__get", url=f"http://rebind.test:{server.port}/")

    assert [request.path for request in server.seen] == ["/"]


def test_next_address_is_tried_if_one_does_not_answer(
    call: CallTool, names: dict[str, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "two.test")
    names["two.test"] = [["127.0.0.3", "127.0.0.2"]]
    with LocalServer("127.0.0.2") as server:
        result = call("http-fetch__post", url=f"http://two.test:{server.port}/", bodyString="text")

        assert result["url"] == f"http://two.test:{server.port}/"
        assert server.seen[0].body == b"text"


def test_refused_connection_is_told(call: CallTool) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        with pytest.raises(ToolError, match=f"GET http://127.0.0.1:{port}/ failed"):
            call("http-fetch__get", url=f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize(
    "url", ["example.com", "http://", "http:///x", "/x", "http://127.0.0.1:0/", "http://[::1", "x" * 70_000]
)
def test_url_that_is_none_is_told(call: CallTool, url: str) -> None:
    with pytest.raises(ToolError, match=r"Invalid URL|failed"):
        call("http-fetch__get", url=url)


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/", "data:,x"]
)
def test_other_protocols_are_refused(call: CallTool, url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(
        ToolError, match=f"Unsupported protocol '{scheme}:'. Only http: and https: are allowed."
    ):
        call("http-fetch__get", url=url)


@pytest.mark.parametrize(
    "headers", [{"Bad Name": "x"}, {"X": "a\r\nInjected: yes"}, {"X": "한"}, {"한": "x"}]
)
def test_header_that_is_none_is_told(call: CallTool, server: LocalServer, headers: dict[str, str]) -> None:
    with pytest.raises(ToolError):
        call("http-fetch__get", url=server.url, headers=headers)

    assert server.seen == []


def pour(handler: BaseHTTPRequestHandler, chunk: bytes = b"x" * 65_536) -> None:
    """Send for ever, or until the client hangs up."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        handler.wfile.write(chunk)


def test_body_that_never_ends_is_cut(call: CallTool, server: LocalServer) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        pour(handler)

    server.routes["/"] = answer

    result = call("http-fetch__get", url=server.url)

    assert (result["body"], result["truncated"]) == ("x" * 500_000, True)


def test_body_exactly_as_long_as_the_limit_is_whole(call: CallTool, server: LocalServer) -> None:
    result = call("http-fetch__get", url=server.url, maxBytes=5)

    assert (result["body"], result["truncated"]) == ("hello", False)


@pytest.mark.parametrize("limit", range(1, 9))
def test_body_is_never_cut_inside_a_character(call: CallTool, server: LocalServer, limit: int) -> None:
    server.answer("/", "é한🙂".encode())

    result = call("http-fetch__get", url=server.url, maxBytes=limit)

    assert "é한🙂".startswith(result["body"])
    assert result["truncated"]


def test_limit_of_the_body_has_a_limit(
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


def test_body_that_is_not_compressed_as_it_says_is_told(call: CallTool, server: LocalServer) -> None:
    server.answer("/", b"not gzip", headers={"Content-Encoding": "gzip"})

    with pytest.raises(ToolError, match="failed"):
        call("http-fetch__get", url=server.url)


def test_body_shorter_than_announced_is_told(call: CallTool, server: LocalServer) -> None:
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


def test_body_longer_than_announced_is_cut_there(call: CallTool, server: LocalServer) -> None:
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
def test_body_is_decoded_as_its_charset_says_if_that_is_one_of_text(
    call: CallTool, server: LocalServer, charset: str, body: bytes, text: str
) -> None:
    server.answer("/", body, headers={"Content-Type": f"text/plain; charset={charset}"})

    if "\0" in charset:
        with pytest.raises(ToolError):
            call("http-fetch__get", url=server.url)
    else:
        assert call("http-fetch__get", url=server.url)["body"] == text


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def test_timeout_covers_the_body_too(call: CallTool, server: LocalServer) -> None:
    server.routes["/"] = drip
    started = time.monotonic()

    with pytest.raises(ToolTimeoutError, match=f"No complete answer within 300 ms: GET {server.url}"):
        call("http-fetch__get", url=server.url, timeoutMs=300)

    assert time.monotonic() - started < 5


def test_server_that_accepts_and_says_nothing_runs_into_the_timeout(call: CallTool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"

        with pytest.raises(ToolTimeoutError):
            call("http-fetch__get", url=url, timeoutMs=200)


@pytest.mark.parametrize("timeout_ms", [0, -5, 1e300, 10**400])
def test_timeout_of_zero_less_or_very_much_is_no_timeout(
    call: CallTool, server: LocalServer, timeout_ms: float
) -> None:
    assert call("http-fetch__get", url=server.url, timeoutMs=timeout_ms)["body"] == "hello"


def test_cancelled_call_hangs_up(context: ToolContext, server: LocalServer) -> None:
    server.routes["/"] = drip

    async def cancelled() -> None:
        async with asyncio.timeout(0.2):
            await http_fetch.get(context, {"url": server.url, "timeoutMs": 0})

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())


def test_many_calls_overlap_on_one_event_loop(context: ToolContext, server: LocalServer) -> None:
    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.3)
        server.answer("/fast", b"hello")
        server.routes["/fast"](handler)

    server.routes["/"] = slow

    async def ten() -> list[Any]:
        return await asyncio.gather(*(http_fetch.get(context, {"url": server.url}) for _ in range(10)))

    started = time.monotonic()
    results = asyncio.run(ten())

    assert [result["body"] for result in results] == ["hello"] * 10
    assert time.monotonic() - started < 2.5


def test_headers_larger_than_sensible_are_told(call: CallTool, server: LocalServer) -> None:
    server.answer("/", headers={"X-Large": "x" * 1_000_000})

    with pytest.raises(ToolError, match="failed"):
        call("http-fetch__get", url=server.url)


def test_what_is_no_http_is_told(call: CallTool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as redis_like:
        port = redis_like.getsockname()[1]

        async def fetch() -> None:
            loop = asyncio.get_running_loop()
            fetching = asyncio.create_task(http_fetch.get(None, {"url": f"http://127.0.0.1:{port}/"}))  # type: ignore[arg-type]
            connection, _ = await loop.run_in_executor(None, redis_like.accept)
            connection.sendall(b"-ERR unknown command\r\n")
            connection.close()
            await fetching

        with pytest.raises(ToolError, match="failed"):
            asyncio.run(fetch())


def certificate(name: str, directory: Path) -> ssl.SSLContext:
    """Make a certificate for a name; return what serves it, and write it for who trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = directory / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


def test_certificate_is_checked_for_the_host_not_for_the_address(
    call: CallTool, names: dict[str, list[list[str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = certificate("right.test", tmp_path)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
    monkeypatch.setattr(http_fetch, "_tls", lambda: trusting)
    names["right.test"] = names["wrong.test"] = [["127.0.0.1"]]
    with LocalServer("127.0.0.1", tls=serving) as server:
        assert call("http-fetch__get", url=f"https://right.test:{server.port}/")["body"] == "hello"
        with pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"):
            call("http-fetch__get", url=f"https://wrong.test:{server.port}/")


def test_unknown_certificate_is_refused(
    call: CallTool, names: dict[str, list[list[str]]], tmp_path: Path
) -> None:
    serving = certificate("right.test", tmp_path)
    names["right.test"] = [["127.0.0.1"]]
    with (
        LocalServer("127.0.0.1", tls=serving) as server,
        pytest.raises(ToolError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        call("http-fetch__get", url=f"https://right.test:{server.port}/")


@pytest.mark.parametrize("args", [{"body": "text"}, {"body": [1]}, {"bodyString": 1}, {"json": {}}])
def test_post_refuses_wrong_and_extra_arguments(call: CallTool, args: dict[str, Any]) -> None:
    with pytest.raises(ToolInputValidationError):
        call("http-fetch__post", url="http://127.0.0.1/", **args)
