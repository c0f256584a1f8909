"""The secret texts of one server, and how they are kept out of what is told of it."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from goondan_tasks.bundle.fields import ValueSource
from goondan_tasks.errors import ConfigError
from goondan_tasks.redaction import KNOWN_SECRETS, MASK, is_named_as_secret, mapped
from workers.mcp.config import is_http_url, resolve

#: a shorter value would blot out ordinary words
_SHORTEST = 6


class Secrets:
    """Resolves texts, and remembers those that do not stand in the YAML.

    All of them are hidden in errors and logs. A value from the environment may be a plain setting that the
    tools' outputs are full of (a directory, a host), so there only credentials are hidden: values of a
    ``secretRef``, and those that a field or a variable with such a name holds.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._values: set[str] = set()
        self._credentials: set[str] = set()

    def text(self, text: str | ValueSource, field: str) -> str:
        """Return the text itself; ``field`` is the name of its field.

        Raises:
            ConfigError: no variable of the environment holds it.
        """
        value = resolve(text, field, self._environment)
        if not isinstance(text, str):
            written = {one for one in _written(value) if len(one) >= _SHORTEST}
            self._values |= written
            if _is_credential(text, field):
                self._credentials |= written
                for one in written:  # libraries log what a server sends, too
                    KNOWN_SECRETS.add(one, is_handed_out=True)
        return value

    def url(self, url: str | ValueSource) -> str:
        """Return an address; of a secret one, what follows the host is hidden by itself, too.

        Raises:
            ConfigError: no variable of the environment holds it, or it is none; it is not shown.
        """
        value = self.text(url, "url").strip()
        if not is_http_url(value):
            raise ConfigError(
                "url: the value is no http address", suggestion="Look at where it is taken from."
            )
        if not isinstance(url, str):
            parts = urlsplit(value)
            told = (parts.path, parts.query, f"{parts.path}?{parts.query}", parts.netloc)
            self._values |= {text for text in told if len(text) >= _SHORTEST}
        return value

    def texts(self, texts: Mapping[str, str | ValueSource]) -> dict[str, str]:
        """Return the texts of a mapping."""
        return {name: self.text(text, name) for name, text in texts.items()}

    def all(self, texts: Iterable[str | ValueSource], field: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(self.text(text, field) for text in texts)

    def hide(self, text: str) -> str:
        """Write ``***`` for each secret in an error or a line of a log, and for each line of one."""
        return _masked(text, self._values)

    def hide_credentials(self, value: Any) -> Any:
        """Return a tool's output, a JSON value, with ``***`` for each credential."""
        return mapped(value, lambda text: _masked(text, self._credentials)) if self._credentials else value


def _is_credential(source: ValueSource, field: str) -> bool:
    where = source.value_from
    if where is None:
        return is_named_as_secret(field)
    return where.secret_ref is not None or is_named_as_secret(field) or is_named_as_secret(where.env or "")


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, MASK)
    return text


def _written(value: str) -> Iterator[str]:
    """Yield a value's lines as they may be told: as they are, escaped, or without ``Bearer``."""
    for line in value.splitlines():
        scheme, _, credentials = line.strip().partition(" ")
        has_scheme = scheme.isalpha() and " " not in credentials
        for told in (line, line.strip(), *([credentials] if has_scheme else [])):
            yield from (told, repr(told)[1:-1], ascii(told)[1:-1], repr(told.encode())[2:-1])
            yield from (json.dumps(told)[1:-1], json.dumps(told)[1:-1].replace("/", r"\/"))
            yield from (quote(told), quote(told, safe=""))
