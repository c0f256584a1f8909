"""The span attributes and metrics of a request to a model."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle.resources import ModelSpec
from goondan_tasks.contract.errors import ModelRateLimitError
from workers.thinking import telemetry
from workers.thinking.model_request import ModelAnswer
from workers.thinking.telemetry import DURATION, TOKENS, described

SPEC = ModelSpec.model_validate({"provider": "google", "model": "large-1"})
CONTEXT = cast(ToolContext, SimpleNamespace(agent_name="coder", instance_key="issue-42"))
ANSWER = ModelAnswer(content=(), usage={"input": 120, "output": 30}, model="large-1-05", finish_reason="stop")
COMMON = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "gcp.gemini",
    "gen_ai.request.model": "large-1",
}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    telemetry._instruments.cache_clear()
    yield reader
    telemetry._instruments.cache_clear()
    provider.shutdown()


def measured(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """Return the points of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


def test_request_and_answer_are_in_span_of_run(reader: InMemoryMetricReader) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    with (
        provider.get_tracer("test").start_as_current_span("run"),
        described(CONTEXT, SPEC) as asked,
    ):
        asked.answer = ANSWER

    [span] = exporter.get_finished_spans()
    assert span.name == "chat large-1"
    assert dict(span.attributes or {}) == {
        **COMMON,
        "gen_ai.agent.name": "coder",
        "gen_ai.conversation.id": "issue-42",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.reasoning.output_tokens": 0,
        "gen_ai.response.model": "large-1-05",
        "gen_ai.response.finish_reasons": ("stop",),
    }


def test_duration_and_tokens_are_measured(reader: InMemoryMetricReader) -> None:
    with described(CONTEXT, SPEC) as asked:
        asked.answer = ANSWER

    found = measured(reader)
    labels = {**COMMON, "gen_ai.response.model": "large-1-05"}
    [duration] = found[DURATION]
    assert (dict(duration.attributes), duration.count) == (labels, 1)
    assert duration.explicit_bounds[0] == 0.01
    tokens = {point.attributes["gen_ai.token.type"]: point for point in found[TOKENS]}
    assert {kind: point.sum for kind, point in tokens.items()} == {"input": 120, "output": 30}
    assert dict(tokens["input"].attributes) == {**labels, "gen_ai.token.type": "input"}


def test_failure_has_its_code_and_no_tokens(reader: InMemoryMetricReader) -> None:
    with pytest.raises(ModelRateLimitError), described(CONTEXT, SPEC):
        raise ModelRateLimitError

    found = measured(reader)
    [duration] = found[DURATION]
    assert dict(duration.attributes) == {**COMMON, "error.type": "E_MODEL_RATE_LIMIT"}
    assert TOKENS not in found


def test_without_opentelemetry_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.metrics")
    monkeypatch.setattr(telemetry, "open_telemetry", lambda: None)
    monkeypatch.setattr(telemetry, "_instruments", lambda: pytest.fail("made"))

    with described(CONTEXT, SPEC) as asked:
        asked.answer = ANSWER
