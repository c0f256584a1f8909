"""Whether a worker makes spans at all."""

import json
import subprocess
import sys

import pytest

from broker_config.settings import span_exporters

_RUN_SPANS = """
import json, os, sys
if sys.argv[1] == "without":
    sys.modules["opentelemetry"] = None
if sys.argv[1] == "own":
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
import goondan_tasks.client
from workers.delivery.spans import run_spans
if "OTEL_TRACES_EXPORTER" not in os.environ or sys.argv[1] == "without":  # what a worker imports
    import workers.runtime, workers.tasks
spans = type(run_spans()).__name__
modules = [name for name, module in sys.modules.items() if module and name.startswith("opentelemetry")]
print(json.dumps([spans, modules]))
"""


def spans_with(**variables: str) -> tuple[str, list[str], str]:
    """Return what spans a process makes, which modules of OpenTelemetry it has imported, and its log."""
    extra = variables.pop("extra", "with")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUN_SPANS, extra],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    *log, last = done.stdout.splitlines()
    spans, modules = json.loads(last)
    return spans, modules, "\n".join(log)


def test_without_being_asked_nothing_is_imported() -> None:
    assert spans_with(extra="without") == ("NoSpans", [], "")
    spans, modules, log = spans_with()
    assert (spans, log) == ("NoSpans", "")
    assert "opentelemetry.sdk.trace" not in modules  # redis imports others, if they are there


def test_exporter_in_environment_asks_for_spans() -> None:
    spans, modules, _ = spans_with(OTEL_TRACES_EXPORTER="console")

    assert spans == "OtelSpans"
    assert "opentelemetry.sdk.trace" in modules


def test_metrics_are_exported_if_requested_by_name() -> None:
    _, modules, log = spans_with(OTEL_METRICS_EXPORTER="console", OTEL_METRIC_EXPORT_INTERVAL="3600000")
    assert "opentelemetry.sdk.metrics" in modules
    assert "installed" not in log
    assert "no such exporter" in spans_with(OTEL_METRICS_EXPORTER="no-such")[2]


def test_tracing_set_up_by_program_is_used() -> None:
    assert spans_with(extra="own")[0] == "OtelSpans"


def test_without_extra_worker_says_so_and_runs() -> None:
    spans, _, log = spans_with(OTEL_TRACES_EXPORTER="console", extra="without")

    assert spans == "NoSpans"
    assert "pip install 'goondan-workers[otel]'" in log


@pytest.mark.parametrize("exporter", ["no-such", "console,no-such"])
def test_exporter_not_installed_is_reported_missing(exporter: str) -> None:
    spans, _, log = spans_with(OTEL_TRACES_EXPORTER=exporter)

    assert spans == ("OtelSpans" if "console" in exporter else "NoSpans")
    assert "no such exporter is installed" in log


@pytest.mark.parametrize(
    ("variables", "exporters"),
    [
        ({}, ()),
        ({"OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ("console", "otlp_proto_http")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ("otlp_proto_http",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, ("otlp_proto_http",)),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("otlp_proto_grpc",)),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, ()),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, ()),
    ],
    ids=str,
)
def test_open_telemetrys_own_variables_say_where_spans_go(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], exporters: tuple[str, ...]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert span_exporters() == exporters
