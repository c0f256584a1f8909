"""The secret texts of one server, and how they are kept out of what is told of it."""

from collections.abc import Iterable, Iterator, Mapping

from goondan_tasks.bundle.values import ValueSource
from workers.mcp.config import resolve

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
            self._values |= {written for written in _written(value) if len(written) >= _SHORTEST}
        return value

    def texts(self, texts: Mapping[str, str | ValueSource]) -> dict[str, str]:
        """Return the texts of a mapping."""
        return {name: self.text(text, name) for name, text in texts.items()}

    def all(self, texts: Iterable[str | ValueSource], field: str) -> tuple[str, ...]:
        """Return the texts of a list."""
        return tuple(self.text(text, field) for text in texts)

    def hide(self, text: str) -> str:
        """Write ``***`` for each secret in ``text``, and for each line of one."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text


def _written(value: str) -> Iterator[str]:
    """Yield a value's lines as they may be told: as they are, or as Python shows text and bytes in errors."""
    for line in value.splitlines():
        yield from (line, line.strip(), repr(line)[1:-1], ascii(line)[1:-1], repr(line.encode())[2:-1])
