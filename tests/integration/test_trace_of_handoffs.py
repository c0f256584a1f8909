"""The trace of work that agents hand to each other, in the ledger and in OpenTelemetry."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace as trace_api
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.history.trace import Trace
from goondan_tasks.testing import LocalStack
from tests.integration.spans import sent, span_of
from tests.waiting import wait_until

PATIENCE = 60

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {name: default}
spec: {entryAgent: Agent/planner, agents: [Agent/planner, Agent/coder, Agent/reviewer]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: planner}
spec: {entry: ./planner.py, tools: []}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: coder}
spec: {entry: ./coder.py, tools: [Tool/wait]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: reviewer}
spec: {entry: ./reviewer.py, tools: []}
"""

PLANNER = """\
async def handle(ctx, event):
    asked = await ctx.runtime.request("coder", {"input": event.input, "type": "task.write"})
    return asked.response
"""

CODER = """\
def handle(ctx, event):
    ctx.call("wait__seconds", {"seconds": 0.05})
    ctx.runtime.send("reviewer", {"input": "look", "type": "task.done"})
    if event.input == "fail":
        raise RuntimeError("no file main.py")
    return "written"
"""

REVIEWER = """\
def handle(ctx, event):
    return "seen"
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    bundle = tmp_path_factory.mktemp("relay")
    files = {"goondan.yaml": BUNDLE, "planner.py": PLANNER, "coder.py": CODER, "reviewer.py": REVIEWER}
    for name, text in files.items():
        Path(bundle / name).write_text(text, "utf-8")
    environment = {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with LocalStack(bundle, environment=environment, concurrency=2) as running:
        yield running


def ended(stack: LocalStack, name: str, count: int) -> Trace:
    """Wait until so many calls of a trace have ended."""
    wait_until(
        lambda: sum(node.finished_at is not None for node in stack.client.trace(name).nodes) == count,
        PATIENCE,
    )
    return stack.client.trace(name)


def drawn(trace: Trace) -> list[str]:
    return [
        f"{'.' * node.depth}{node.agent} {node.event_type or node.tool} {node.state}" for node in trace.nodes
    ]


def test_request_and_resulting_calls_form_one_span_tree(stack: LocalStack) -> None:
    answer = stack.client.request("planner", "write", instance_key="issue-42", timeout=PATIENCE)

    trace = ended(stack, answer.correlation_id, 4)

    assert drawn(trace) == [
        "planner agent.request ok",
        ".coder task.write ok",
        "..coder wait__seconds ok",
        "..reviewer task.done ok",
    ]
    assert {node.trace_id for node in trace.nodes} == {trace.nodes[0].trace_id}
    for node in trace.nodes:
        above = [one.span_id for one in trace.nodes if one.id == node.parent_id]
        span = span_of(stack, node.id)
        assert span["context"] | {"trace_state": ""} == {
            "trace_id": f"0x{node.trace_id}",
            "span_id": f"0x{node.span_id}",
            "trace_state": "",
        }
        assert span["parent_id"] == (f"0x{above[0]}" if above else None)
    assert [stack.client.trace(node.id).nodes[-1].id for node in trace.nodes] == [trace.nodes[-1].id] * 4


def test_trace_shows_origin_and_effect_of_failure(stack: LocalStack) -> None:
    chosen = f"order-{uuid.uuid4()}"
    with pytest.raises(HandoffError):
        stack.client.request("planner", "fail", timeout=PATIENCE, correlation_id=chosen)

    trace = ended(stack, chosen, 4)

    assert (trace.correlation_id, trace.nodes[0].correlation_id) == (chosen, chosen)
    errors = {node.agent: node.error.message for node in trace.nodes if node.error is not None}
    assert errors["coder"] == "no file main.py"
    assert set(errors) == {"planner", "coder"}


def test_request_within_span_belongs_to_its_trace(
    stack: LocalStack, producer_spans: InMemorySpanExporter
) -> None:
    producer_spans.clear()
    with trace_api.get_tracer("brain").start_as_current_span("think") as brain:
        answer = stack.client.request("reviewer", "look", timeout=PATIENCE)
    trace_id = f"{brain.get_span_context().trace_id:032x}"

    [node] = ended(stack, trace_id, 1).nodes

    above = sent(producer_spans).get_span_context()
    assert above is not None
    assert (node.id, node.trace_id) == (answer.correlation_id, trace_id)
    assert span_of(stack, node.id)["name"] == "invoke_agent reviewer"
    assert span_of(stack, node.id)["parent_id"] == f"0x{above.span_id:016x}"
