"""One HTTP request to a provider: limited in time and size, no redirects."""

import asyncio
import functools
import math
import ssl
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2

from goondan_tasks.oauth.oauth_errors import ProviderUnavailableError

#: a host that is not there is told sooner than one that takes its time
_CONNECT_SECONDS = 5.0
_TICK_SECONDS = 0.5
_MAX_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    """A provider's answer."""

    status: int
    text: str


@dataclass(frozen=True)
class ProviderHttp:
    """Sends requests to providers; safe in threads. Errors name a URL's host, never its query."""

    #: of a whole exchange, from the look-up of the host's name to the last byte of the answer
    timeout_seconds: float = 15.0

    def post(
        self, url: str, headers: Mapping[str, str], body: str, *, seconds: float | None = None
    ) -> ProviderResponse:
        """Send a form; ``seconds`` replaces ``timeout_seconds``.

        Raises:
            ProviderUnavailableError: no answer, one that is too large, or not within the time; it is in doubt
                if the form may have been sent.
        """
        return self._send("POST", url, headers, body, seconds or self.timeout_seconds)

    def get(self, url: str, headers: Mapping[str, str]) -> ProviderResponse:
        """Fetch what stands at ``url``; raises as ``post`` does."""
        return self._send("GET", url, headers, "", self.timeout_seconds)

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx2.create_ssl_context()

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: str, seconds: float
    ) -> ProviderResponse:
        loop, sending = asyncio.new_event_loop(), asyncio.Event()
        try:
            exchange = self._exchange(method, url, headers, body, sending)
            return loop.run_until_complete(_within(seconds, exchange))
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ProviderUnavailableError(
                f"The OAuth provider at {host} did not answer: {reason}.", is_in_doubt=sending.is_set()
            ) from error
        finally:
            loop.close()  # unlike asyncio.run it does not wait for a look-up of a name that hangs

    async def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: str, sending: asyncio.Event
    ) -> ProviderResponse:
        async def note(event: str, _info: object) -> None:
            if event.endswith(".send_request_body.started"):
                sending.set()

        async with (
            httpx2.AsyncClient(
                timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                # without compression, so that the limit of size is one of memory
                headers={"Accept-Encoding": "identity"},
                verify=self._tls,
            ) as client,
            client.stream(
                method, url, headers=headers, content=body or None, extensions={"trace": note}
            ) as response,
        ):
            data = bytearray()
            async for piece in response.aiter_raw():
                data += piece
                if len(data) > _MAX_BYTES:
                    raise httpx2.ReadError("the answer is too long")
            return ProviderResponse(response.status_code, data.decode("utf-8", "replace"))


async def _within(seconds: float, exchange: Coroutine[Any, Any, ProviderResponse]) -> ProviderResponse:
    """Return what an exchange brings within ``seconds`` in which this process ran.

    They are counted in ticks. A process that was frozen (SIGSTOP, a paused machine) still reads the answer
    that came meanwhile: it may hold the only copy of a refresh token.
    """
    task = asyncio.ensure_future(exchange)
    ticks = math.ceil(seconds / _TICK_SECONDS)
    for _ in range(ticks):
        if (await asyncio.wait({task}, timeout=seconds / ticks))[0]:
            return task.result()
    task.cancel()
    await asyncio.wait({task})
    raise TimeoutError(f"its answer is not complete after {seconds:g} s")
