"""What the tests of this folder share: a stack that they leave alone, and one whose workers they may end."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"


@pytest.fixture(scope="session")
def calls_stack() -> Iterator[LocalStack]:
    with LocalStack(CALLS_BUNDLE) as stack:
        yield stack


@pytest.fixture(scope="session")
def client(calls_stack: LocalStack) -> Client:
    return calls_stack.client


@pytest.fixture(scope="session")
def producer_spans() -> InMemorySpanExporter:
    """Have this process make spans, as a program with OpenTelemetry does."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture(scope="session")
def smithy() -> Iterator[Crew]:
    """A stack with short leases, for tests that stop and kill its workers."""
    with LocalStack(
        CALLS_BUNDLE, agents=["smith"], workers=0, environment={"GOONDAN_LEASE_SECONDS": "2"}
    ) as stack:
        yield Crew(stack)
