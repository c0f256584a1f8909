"""A logger that takes values beside its text, as the documents' ``Console`` does (002 §4.3, §5.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.tool_api import Logger


@dataclass(frozen=True, slots=True)
class ConsoleLogger:
    """Logs ``values`` as a field; of an exception among them, the traceback."""

    lines: Logger
    #: stand in every line
    bound: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, **fields: Any) -> "ConsoleLogger":
        """Return a logger whose lines have these fields, too."""
        return ConsoleLogger(self.lines, {**self.bound, **fields})

    def debug(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log for the developer."""
        self.lines.debug(str(event), **_with(values, {**self.bound, **fields}))

    def info(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what happened."""
        self.lines.info(str(event), **_with(values, {**self.bound, **fields}))

    def warning(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what may be wrong."""
        self.lines.warning(str(event), **_with(values, {**self.bound, **fields}))

    def error(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what is wrong."""
        self.lines.error(str(event), **_with(values, {**self.bound, **fields}))

    def exception(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what is wrong, with the traceback of what is being handled."""
        self.error(event, *values, **{"exc_info": True, **fields})

    #: the documents' other names
    log = info
    warn = warning


def _with(values: Sequence[Any], fields: dict[str, Any]) -> dict[str, Any]:
    errors = [value for value in values if isinstance(value, BaseException)]
    shown = [value for value in values if not isinstance(value, BaseException)]
    if errors:
        fields = {**fields, "exc_info": errors[0]}
    return {"values": shown, **fields} if shown else fields
