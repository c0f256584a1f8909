"""The secret texts of one server, and how they are kept out of what is told of it."""

from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from goondan_tasks.bundle.values import ValueSource
from goondan_tasks.errors import ConfigError
from workers.mcp.config import is_http_url, resolve

#: a shorter value would blot out ordinary words
_SHORTEST = 6


class Secrets:
    """Resolves texts, and remembers those that do not stand in the YAML."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._values: set[str] = set()

    def text(self, text: str | ValueSource, field: str) -> str:
        """Return the text itself; ``field`` is the name of its field.

        Raises:
            ConfigError: no variable of the environment holds it.
        """
        value = resolve(text, field, self._environment)
        if not isinstance(text, str):
            self._hide_from_now_on(*_written(value))
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
            self._hide_from_now_on(parts.path, parts.query, f"{parts.path}?{parts.query}", parts.netloc)
        return value

    def texts(self, texts: Mapping[str, str | ValueSource]) -> dict[str, str]:
        """Return the texts of a mapping."""
        return {name: self.text(text, name) for name, text in texts.items()}

    def all(self, texts: Iterable[str | ValueSource], field: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(self.text(text, field) for text in texts)

    def _hide_from_now_on(self, *texts: str) -> None:
        self._values |= {text for text in texts if len(text) >= _SHORTEST}

    def hide(self, text: str) -> str:
        """Write ``***`` for each secret in ``text``, and for each line of one."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def _written(value: str) -> Iterator[str]:
    """Yield a value's lines as they may be told: as they are, or as Python shows text and bytes in errors."""
    for line in value.splitlines():
        yield from (line, line.strip(), repr(line)[1:-1], ascii(line)[1:-1], repr(line.encode())[2:-1])
