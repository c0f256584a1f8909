"""One HTTP request to a provider: limited in time and size, no redirects."""

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from goondan_tasks.oauth.provider_errors import ProviderUnavailableError

#: between two pieces of an answer
_SILENCE_SECONDS = 5.0
_MAX_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class ProviderResponse:
    """A provider's answer."""

    status: int
    text: str


@dataclass(frozen=True)
class ProviderHttp:
    """Sends requests to providers; safe in threads. Errors name a URL's host, never its query."""

    #: of a request and its whole answer
    timeout_seconds: float = 15.0

    def post(self, url: str, headers: Mapping[str, str], body: str) -> ProviderResponse:
        """Send a form.

        Raises:
            ProviderUnavailableError: no answer, one that is too large, or not within the time.
        """
        return self._send("POST", url, headers, body)

    def get(self, url: str, headers: Mapping[str, str]) -> ProviderResponse:
        """Fetch what stands at ``url``; raises as ``post`` does."""
        return self._send("GET", url, headers, "")

    @functools.cached_property
    def _client(self) -> httpx2.Client:
        return httpx2.Client(
            timeout=_SILENCE_SECONDS,
            # without compression, so that the limit of size is one of memory
            headers={"Accept-Encoding": "identity"},
            # requests are rare: a connection that is kept would be stale by the next
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: str) -> ProviderResponse:
        deadline = time.monotonic() + self.timeout_seconds
        try:
            with self._client.stream(method, url, headers=headers, content=body or None) as response:
                data = bytearray()
                for piece in response.iter_raw():
                    data += piece
                    if len(data) > _MAX_BYTES or time.monotonic() > deadline:
                        raise httpx2.ReadError("the answer is too long, or takes too long")
                return ProviderResponse(response.status_code, data.decode("utf-8", "replace"))
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            reason = str(error) or type(error).__name__
            host = urlsplit(url).netloc.rpartition("@")[2]
            raise ProviderUnavailableError(
                f"The OAuth provider at {host} did not answer: {reason}."
            ) from error
