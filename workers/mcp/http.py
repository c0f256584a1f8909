"""An MCP server behind an address, spoken to by streamable HTTP."""

import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from goondan_tasks.errors import ConfigError
from workers.mcp.stdio import MESSAGE_BYTES

#: to connect and to send; an answer may take as long as its call may
CONNECT_SECONDS = 15.0


#: what the value of a header may have
_SENT = re.compile(r"[\t\x20-\x7e]*")


def sent_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers as they are sent: spaces and line ends around a value are none of it (RFC 9110, §5.5).

    Raises:
        ConfigError: a value cannot be sent; it is not shown.
    """
    sent = {name: value.strip() for name, value in headers.items()}
    for name, value in sent.items():
        if _SENT.fullmatch(value) is None:
            raise ConfigError(
                f"headers.{name}: the value has a line end or another character that no header may have",
                suggestion="Look at the variable or the secret that it is taken from.",
            )
    return sent


class HttpTransport:
    """One connection to a server (``mcp.client.Transport``).

    Redirects are followed within the server's origin only, so no other host sees ``headers``.
    """

    end = ""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._open = AsyncExitStack()

    async def __aenter__(self) -> TransportStreams:
        """Make the connection; nothing is sent yet."""
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
        client = await self._open.enter_async_context(
            httpx2.AsyncClient(headers=dict(self._headers), timeout=timeout)
        )
        # a server that hangs would not answer the farewell either
        return await self._open.enter_async_context(
            streamable_http_client(
                self._url, http_client=client, terminate_on_close=False, max_sse_event_size=MESSAGE_BYTES
            )
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Drop the connection."""
        return await self._open.__aexit__(kind, error, traceback)
