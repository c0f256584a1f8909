"""The OpenTelemetry span that this thread or task is in.

Where nobody has imported OpenTelemetry there is none. So it is not imported here either, and whoever does
without it pays for one look.
"""

import sys
from typing import Any

from goondan_tasks.traceparent import SpanIds


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
