"""What a token endpoint answers, in every form that providers give it (RFC 6749 §5)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from pydantic import SecretStr

from goondan_tasks.messages import JsonObject

_SCOPE_SEPARATORS = re.compile(r"[\s,]+")
#: RFC 6749 §5.2: what an error code may be made of, without what could be markup
_ERROR_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,80}")
#: a century; what is said to live longer does not expire, and no calendar takes every number
_LONGEST_SECONDS = 100 * 366 * 86_400
_SECRET_FIELDS = frozenset({"access_token", "refresh_token", "id_token", "device_code"})
#: of a field that may hold a secret at any depth, such as Slack's ``authed_user.access_token``, or an address
#: that is one: whoever knows ``incoming_webhook.url`` posts to the channel
_SECRET_NAME = re.compile(
    r"token|secret|passw|pwd|assertion|credential|code|key|jwt|cookie|sess|nonce|sign|bearer|authori[sz]ation"
    r"|hook|ur[il]|href|link|callback|endpoint",
    re.IGNORECASE,
)
#: of a text that may be one whatever its field is called: an address, or a longer word than names have
_SECRET_TEXT = re.compile(r"://|\S{40}")
#: what a grant says elsewhere
_STANDARD_FIELDS = frozenset({"ok", "scope", "expires_in"})
_DEEPEST = 8
_MOST_DATA = 16_384


@dataclass(frozen=True, slots=True)
class TokenReply:
    """A token as a provider has just given it out."""

    access_token: SecretStr
    token_type: str = "bearer"  # noqa: S105 - a kind, no secret
    refresh_token: SecretStr | None = None
    #: seconds from now; ``None`` if the provider does not say, or the token does not expire
    expires_in: float | None = None
    #: ``None`` if the provider does not say: those that were asked for (RFC 6749 §5.1)
    scopes: tuple[str, ...] | None = None
    id_token: SecretStr | None = None
    #: all else that the provider says, such as Slack's ``team``
    details: JsonObject = field(default_factory=dict, repr=False)


def reply_fields(text: str) -> JsonObject | None:
    """Read a reply as JSON, or form-encoded as GitHub sends it; ``None`` if it is neither."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return _form_fields(text)
    return fields if isinstance(fields, dict) else None


def _form_fields(text: str) -> JsonObject | None:
    if "=" not in text or "<" in text:
        return None
    try:
        return dict(parse_qsl(text.strip(), max_num_fields=100))
    except ValueError:  # more of them than any reply has
        return None


def reply_error(fields: Mapping[str, Any]) -> str | None:
    """Return the error code of a reply; Slack and GitHub send errors with HTTP 200, too."""
    error = fields.get("error")
    if isinstance(error, Mapping):
        error = error.get("code") or error.get("type")
    if error or fields.get("ok") is False:
        return error_code(error)
    return None


def error_code(error: object) -> str:
    """Return a provider's error code if it is one: it ends up in logs and on pages."""
    return error if isinstance(error, str) and _ERROR_CODE.fullmatch(error) else "unknown_error"


def token_reply(fields: Mapping[str, Any]) -> TokenReply | None:
    """Read a token from a reply without an error; ``None`` if there is none in it."""
    access_token = _text(fields, "access_token")
    if access_token is None:
        return None
    return TokenReply(
        access_token=SecretStr(access_token),
        token_type=(_text(fields, "token_type") or "bearer").lower(),
        refresh_token=_secret(fields, "refresh_token"),
        expires_in=_seconds(fields.get("expires_in")),
        scopes=_scopes(fields.get("scope")),
        id_token=_secret(fields, "id_token"),
        details={name: value for name, value in fields.items() if name not in _SECRET_FIELDS},
    )


def _scopes(scope: Any) -> tuple[str, ...] | None:
    """Read scopes: separated by spaces (RFC 6749 §3.3), by commas (Slack, GitHub), or a list."""
    parts = (
        scope if isinstance(scope, list) else _SCOPE_SEPARATORS.split(scope if isinstance(scope, str) else "")
    )
    scopes = tuple(dict.fromkeys(part for part in parts if isinstance(part, str) and part))
    return scopes or None


def _seconds(value: Any) -> float | None:
    """Read a duration; form-encoded replies write it as text, and 0 there means that nothing expires."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return seconds if 0 < seconds <= _LONGEST_SECONDS else None


def _secret(fields: Mapping[str, Any], name: str) -> SecretStr | None:
    text = _text(fields, name)
    return None if text is None else SecretStr(text)


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) and value else None


def provider_data(reply: TokenReply) -> JsonObject:
    """Return what is kept of a reply's details in plain text (000 §12.5.4): what may be a secret is left out.

    A provider that says more than 16 KiB is not one whose words are worth keeping: then nothing is.
    """
    secrets = [
        one.get_secret_value() for one in (reply.access_token, reply.refresh_token, reply.id_token) if one
    ]
    details = {name: value for name, value in reply.details.items() if name not in _STANDARD_FIELDS}
    data: JsonObject = without_secrets(details, secrets)
    return data if len(json.dumps(data)) <= _MOST_DATA else {}


def without_secrets(value: Any, secrets: Sequence[str] = (), depth: int = _DEEPEST) -> Any:
    """Return ``value`` without what may be a secret, or holds one of ``secrets``."""
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if depth and not _SECRET_NAME.search(name)}
        return {name: without_secrets(one, secrets, depth - 1) for name, one in kept.items()}
    if isinstance(value, list):
        return [without_secrets(one, secrets, depth - 1) for one in value if depth]
    if isinstance(value, str) and (_SECRET_TEXT.search(value) or any(secret in value for secret in secrets)):
        return None
    return value
