"""A logger that takes values beside its text, as the documents' ``Console`` does (002 §4.3, §5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from goondan_tasks.tool_api import Logger


@dataclass(frozen=True, slots=True)
class ConsoleLogger:
    """Logs ``values`` as a field; of an exception among them, the traceback."""

    lines: Logger

    def debug(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log for the developer."""
        self.lines.debug(str(event), **_with(values, fields))

    def info(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what happened."""
        self.lines.info(str(event), **_with(values, fields))

    def warning(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what may be wrong."""
        self.lines.warning(str(event), **_with(values, fields))

    def error(self, event: Any, *values: Any, **fields: Any) -> None:
        """Log what is wrong."""
        self.lines.error(str(event), **_with(values, fields))

    #: the documents' other names
    log = info
    warn = warning


def _with(values: Sequence[Any], fields: dict[str, Any]) -> dict[str, Any]:
    errors = [value for value in values if isinstance(value, BaseException)]
    shown = [value for value in values if not isinstance(value, BaseException)]
    if errors:
        fields = {"exc_info": errors[0], **fields}
    return {"values": shown, **fields} if shown else fields
