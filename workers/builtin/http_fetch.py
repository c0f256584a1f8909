"""Built-in tool ``http-fetch``: requests to public addresses and those the operator allows (003 §12.2)."""

import asyncio
import codecs
import functools
import json
import ssl
import time
from contextlib import aclosing

import httpx2

from goondan_tasks.contract.redaction import without_user
from goondan_tasks.errors import ToolTimeoutError
from goondan_tasks.tool_api import JsonObject, ToolContext, ToolError, ToolHandler
from workers.addresses import AllowList, permitted_addresses

MAX_BODY_BYTES = 10_000_000
MAX_REDIRECTS = 20
LONGEST_TIMEOUT_MS = 1e10
USER_AGENT = "goondan-http-fetch"

#: prefixes of the encodings of web pages; Python's others are not text encodings, or decode slowly
ENCODINGS = ("ascii", "big5", "cp", "euc", "gb", "iso", "koi8", "mac", "shift", "utf-8", "utf-16", "utf-32")


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Connects each request, redirects included, to a checked address."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        # connections are not reused: each was opened for one host's name and certificate
        limits = httpx2.Limits(max_keepalive_connections=0)
        self._transport = httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=False, limits=limits)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the first address of its host that accepts a connection."""
        host = request.url.raw_host.decode("ascii")
        failure: httpx2.TransportError = httpx2.ConnectError(f"The host {host!r} has no address")
        for address in await permitted_addresses(host, self._allow):
            pinned = httpx2.Request(
                request.method,
                request.url.copy_with(host=str(address)),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._transport.handle_async_request(pinned)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        raise failure

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context(trust_env=False)


async def get(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Send a GET request."""
    return await _fetch("GET", input, _headers(input), body=None)


async def post(ctx: ToolContext, input: JsonObject) -> JsonObject:
    """Send a POST request with a JSON body or an unchanged text."""
    headers = _headers(input)
    if "body" not in input:
        return await _fetch("POST", input, headers, body=input.get("bodyString", ""))
    headers.setdefault("content-type", "application/json")
    return await _fetch("POST", input, headers, body=json.dumps(input["body"]))


def _headers(input: JsonObject) -> dict[str, str]:
    given = input.get("headers", {}).items()
    return {name.lower(): value if isinstance(value, str) else json.dumps(value) for name, value in given}


async def _fetch(method: str, input: JsonObject, headers: dict[str, str], *, body: str | None) -> JsonObject:
    url, timeout_ms = input["url"], input.get("timeoutMs", 30_000)
    shown = f"{method} {without_user(url)}"
    started = time.monotonic()
    try:
        async with asyncio.timeout(min(timeout_ms, LONGEST_TIMEOUT_MS) / 1000 if timeout_ms > 0 else None):
            async with _client() as client:
                request = client.build_request(
                    method, _checked(httpx2.URL(url)), headers=headers, content=body
                )
                async with aclosing(await _send(client, request)) as response:
                    text, truncated = await _read(response, int(input.get("maxBytes", 500_000)))
    except TimeoutError as error:
        raise ToolTimeoutError(f"No complete answer within {timeout_ms:g} ms: {shown}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise ToolError(f"{shown} failed: {str(error) or type(error).__name__}") from error
    except UnicodeError as error:
        raise ToolError(f"The request cannot be encoded: {error}") from error
    return {
        "url": str(response.url),
        "method": response.request.method,
        "status": response.status_code,
        "statusText": response.reason_phrase,
        "headers": dict(response.headers.items()),
        "body": text,
        "truncated": truncated,
        "durationMs": round((time.monotonic() - started) * 1000),
    }


def _client() -> httpx2.AsyncClient:
    # one per call: instances share neither cookies nor connections
    return httpx2.AsyncClient(
        transport=CheckedTransport(AllowList.load()),
        headers={"user-agent": USER_AGENT},
        trust_env=False,
        timeout=None,
    )


async def _send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send a request and follow redirects without reading their bodies, which may be endless."""
    for _ in range(1 + MAX_REDIRECTS):
        response = await client.send(request, stream=True)
        if response.next_request is None:
            return response
        await response.aclose()
        request = response.next_request
        _checked(request.url)
    raise ToolError(f"More than {MAX_REDIRECTS} redirects, the last one to {without_user(str(request.url))}")


def _checked(url: httpx2.URL) -> httpx2.URL:
    if url.scheme not in {"", "http", "https"}:
        raise ToolError(f"Unsupported protocol '{url.scheme}:'. Only http: and https: are allowed.")
    if not (url.scheme and url.host and (url.port is None or 0 < url.port < 65_536)):
        raise ToolError(
            f"Invalid URL: {without_user(str(url))}",
            suggestion="Give a whole URL, such as https://example.com/page.",
        )
    return url


async def _read(response: httpx2.Response, max_bytes: int) -> tuple[str, bool]:
    """Read a decompressed body up to a limit; return its text and whether it was truncated."""
    limit = min(max_bytes, MAX_BODY_BYTES)
    body = bytearray()
    async with aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                break
    truncated = len(body) > limit
    decoder = codecs.getincrementaldecoder(_encoding(response))("replace")
    return decoder.decode(bytes(body[:limit]), final=not truncated), truncated


def _encoding(response: httpx2.Response) -> str:
    try:
        name = codecs.lookup(response.charset_encoding or "utf-8").name
    except (LookupError, ValueError):
        return "utf-8"
    return name if name.startswith(ENCODINGS) else "utf-8"


handlers: dict[str, ToolHandler] = {"get": get, "post": post}
