"""One OpenTelemetry span for each run, in workers whose environment asks for it (extra ``otel``)."""

import sys
from collections.abc import Callable
from typing import Protocol

import structlog

from broker_config.settings import metric_exporters, span_exporters
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.ledger.record import Claim

logger = structlog.get_logger(__name__)


class RunSpans(Protocol):
    """Opens and ends the spans of runs."""

    def around(self, claim: Claim, run: Callable[[], None]) -> None:
        """Open the span of a run that begins now, and call ``run`` inside of it."""

    def end(self, claim: Claim, result: ToolCallResult) -> None:
        """End the span of a run with its result."""


class NoSpans:
    """Leaves runs as they are."""

    def around(self, claim: Claim, run: Callable[[], None]) -> None:
        """Call ``run``."""
        run()

    def end(self, claim: Claim, result: ToolCallResult) -> None:
        """Do nothing."""


def run_spans() -> RunSpans:
    """Return the spans that the environment asks for, or those of a provider that the program has set up.

    The metrics that it asks for are exported, too.

    Without either, nothing is imported. A missing extra is logged, and calls run without spans.
    """
    exporters, measured = span_exporters(), metric_exporters()
    if not exporters and not measured and "opentelemetry.sdk.trace" not in sys.modules:
        return NoSpans()
    try:
        from workers.delivery.otel_spans import OtelSpans, set_up_metrics, tracer_provider

        provider = tracer_provider(exporters)
        set_up_metrics(measured)
    except (ImportError, ValueError) as error:  # it is not installed, or one of its variables is wrong
        logger.warning("spans.off", reason=str(error), what_to_do="pip install 'goondan-workers[otel]'")
        return NoSpans()
    return NoSpans() if provider is None else OtelSpans(provider)
