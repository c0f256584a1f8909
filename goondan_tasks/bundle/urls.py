"""The URLs in resources."""

import re
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator

from goondan_tasks.bundle.fields import checked
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.machine.process import is_loopback

_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]*)+")
_NO_URL_CHARACTER = re.compile(r"[\x00-\x20\x7f-\uffff\\]")


def _check_server_url(url: str) -> str:
    """Check the URL of a model's server; plain http is allowed, for private networks."""
    parts = _split(url)
    if parts.scheme not in ("http", "https"):
        raise FieldError(
            f"'{url[:80]}' must be an http or https URL", "Write it as in http://127.0.0.1:8000/v1."
        )
    if parts.username is not None or parts.password is not None:
        raise FieldError("a URL must not contain a password", "Write the key under 'apiKey'.")
    return url


def _check_url(url: str) -> str:
    """Check an endpoint's URL (RFC 6749 §3.1, §3.2 on fragments and TLS; RFC 8252 §8.3 on loopback)."""
    parts = _split(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        suggestion = "Write https://…; http is only for this machine (127.0.0.1)."
        raise FieldError(f"'{url[:80]}' must be an https URL", suggestion)
    if parts.username is not None or parts.password is not None:
        suggestion = "Write the client's id and secret under 'client'."
        raise FieldError("a URL must not contain a password", suggestion)
    if "#" in url:
        raise FieldError(f"'{url[:80]}' has a fragment", "Leave out the '#' and what follows it.")
    return url


def _check_base_url(url: str) -> str:
    if "?" in _check_url(url):
        raise FieldError(f"'{url[:80]}' has a query", "Leave out the '?' and what follows it.")
    return url


def _split(url: str) -> SplitResult:
    error = FieldError(f"'{url[:80]}' is not a URL", "Write it in full: https://host/path.")
    if _NO_URL_CHARACTER.search(url):
        raise error
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a port
    except ValueError as reason:
        raise error from reason
    if not parts.scheme or not parts.hostname:
        raise error
    return parts


ServerUrl = Annotated[str, AfterValidator(_check_server_url)]
EndpointUrl = Annotated[str, AfterValidator(_check_url)]
BaseUrl = Annotated[str, AfterValidator(_check_base_url)]
UrlPath = Annotated[
    str, checked(_PATH.fullmatch, "a path", "Begin it with '/', such as /oauth/callback; no query.")
]
