"""Spans and traces: the OpenTelemetry span that is open here, and the W3C header that carries one.

OpenTelemetry is not imported here. If the program has not imported it either, there is no span, and asking
costs one look-up.
"""

import re
import sys
from typing import Any, NamedTuple

_IDS = re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}")
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")


class SpanIds(NamedTuple):
    """A span, and the trace that it is in."""

    trace_id: str
    span_id: str

    @property
    def are_valid(self) -> bool:
        """Whether W3C allows them: lower-case hex digits, and not only zeros."""
        is_hex = _IDS.fullmatch(f"{self.trace_id}-{self.span_id}") is not None
        return is_hex and bool(self.trace_id.strip("0") and self.span_id.strip("0"))


def write_traceparent(trace_id: str, span_id: str) -> str | None:
    """Return the header of a call; ``None`` if its ids, which producers may choose, have another form."""
    ids = f"{trace_id}-{span_id}"
    return f"00-{ids}-01" if _IDS.fullmatch(ids) else None


def read_traceparent(header: object) -> SpanIds | None:
    """Read the span that a message comes from; ``None`` if it is malformed.

    Versions after 00 may have more fields at the end; version ff is invalid.
    """
    found = _HEADER.fullmatch(header) if isinstance(header, str) else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4] is not None):
        return None
    ids = SpanIds(found[2], found[3])
    return ids if ids.are_valid else None


def open_telemetry() -> Any:
    """Return ``opentelemetry.trace`` if the program has imported it, else ``None``."""
    return sys.modules.get("opentelemetry.trace")


def current_span() -> SpanIds | None:
    """Return the span that is open here, if there is one."""
    api = open_telemetry()
    return None if api is None else span_ids(api.get_current_span())


def span_ids(span: Any) -> SpanIds | None:
    """Return a span's ids as they stand on the wire; ``None`` if it has none."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return SpanIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")
