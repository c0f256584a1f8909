"""What OpenTelemetry gets of a request to a model: attributes of the run's span, and metrics.

Source: https://github.com/open-telemetry/semantic-conventions-genai, gen-ai-spans and gen-ai-metrics. Nothing
is made unless the program has imported OpenTelemetry.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from time import monotonic
from typing import Any

from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle.resources import ModelSpec
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import open_telemetry
from workers.thinking.model_request import ModelAnswer

SPAN_PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
}
SPAN_USAGE = {
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}
DURATION, TOKENS = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
#: the buckets that the conventions ask for, in seconds and in tokens
_SECONDS = tuple(0.01 * 2**power for power in range(14))
_COUNTS = tuple(4**power for power in range(14))


@dataclass(slots=True)
class Asked:
    """One request, and its answer once it has come."""

    common: Mapping[str, str]
    answer: ModelAnswer | None = None
    began: float = field(default_factory=monotonic)


@contextmanager
def described(ctx: ToolContext, spec: ModelSpec) -> Iterator[Asked]:
    """Describe the request that is made in a ``with`` block, which sets ``answer``."""
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": SPAN_PROVIDERS.get(spec.provider, spec.provider),
        "gen_ai.request.model": spec.model,
    }
    asked = Asked(common)
    _describe(
        {**common, "gen_ai.agent.name": ctx.agent_name, "gen_ai.conversation.id": ctx.instance_key}, spec
    )
    has_ended = False
    try:
        yield asked
        has_ended = True
    finally:
        error = None if has_ended else sys.exception()
        _measure(asked, None if error is None else getattr(error, "code", type(error).__name__))
    if asked.answer is not None:
        _describe(_of_answer(asked.answer))


def _of_answer(answer: ModelAnswer) -> JsonObject:
    attributes: JsonObject = {name: answer.usage.get(kind, 0) for kind, name in SPAN_USAGE.items()}
    reasons = [answer.finish_reason] if answer.finish_reason else None
    return {
        **attributes,
        "gen_ai.response.model": answer.model,
        "gen_ai.response.finish_reasons": reasons,
    }


def _describe(attributes: JsonObject, spec: ModelSpec | None = None) -> None:
    """Set attributes of the run's span; ``spec`` gives it its name, too."""
    api = open_telemetry()
    if api is None:
        return
    span = api.get_current_span()
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if spec is not None:
        span.update_name(f"chat {spec.model}")


def _measure(asked: Asked, error: str | None) -> None:
    if "opentelemetry.metrics" not in sys.modules:
        return
    duration, tokens = _instruments()
    labels, answer = dict(asked.common), asked.answer
    if answer is not None and answer.model:
        labels["gen_ai.response.model"] = answer.model
    failed = {} if error is None else {"error.type": error}
    duration.record(monotonic() - asked.began, {**labels, **failed})
    for kind in ("input", "output"):
        if answer is not None:
            tokens.record(answer.usage.get(kind, 0), {**labels, "gen_ai.token.type": kind})


@lru_cache(maxsize=1)
def _instruments() -> tuple[Any, Any]:
    """Return the histograms; without a provider of metrics they record nothing."""
    meter = sys.modules["opentelemetry.metrics"].get_meter("goondan")
    duration = meter.create_histogram(
        DURATION,
        "s",
        "How long requests to models took.",
        explicit_bucket_boundaries_advisory=_SECONDS,
    )
    tokens = meter.create_histogram(
        TOKENS,
        "{token}",
        "Tokens of requests to models, and of their answers.",
        explicit_bucket_boundaries_advisory=_COUNTS,
    )
    return duration, tokens
