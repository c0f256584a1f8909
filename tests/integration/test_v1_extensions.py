"""Extensions of the older version in worker processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack

V1_EXTENSIONS_BUNDLE = Path(__file__).parent.parent / "bundles" / "v1-extensions"

PATIENCE = 60


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalStack(V1_EXTENSIONS_BUNDLE, workers=2) as stack:
        yield stack.client


@pytest.mark.requirement("v1.catalog-per-step", "v1.dynamic-register")
def test_step_tools_change_catalog_of_producers_step(client: Client) -> None:
    turn = client.turn("astronomer", "k1", origin={"drop": "lens__focus"})
    step = turn.step(timeout=PATIENCE)
    assert step.catalog.names == ("dome.turn", "almanac.read")
    assert [block["type"] for block in step.blocks] == ["custom.almanac", "custom.shutter"]

    # the names as a provider takes them
    names = [step.catalog.provider_name(name) for name in ("dome.turn", "almanac.read")]
    calls = [{"id": f"c{number}", "name": name, "args": {"degrees": 5}} for number, name in enumerate(names)]
    turned, read = step.run(calls, timeout=PATIENCE)
    assert (turned.output, read.status) == ({"degrees": 5, "turnId": turn.id}, "ok")


@pytest.mark.requirement("v1.pipeline-points")
def test_event_of_entry_passes_all_points(client: Client) -> None:
    answer = client.request("astronomer", "dome.turn", instance_key="k2", timeout=PATIENCE).response

    block = {"type": "custom.almanac", "data": {"agent": "astronomer", "step": 0}}
    assert answer == {
        "answer": {
            "tools": ["dome.turn", "lens__focus", "almanac.read"],
            "status": "ok",
            "blocks": [block, {"type": "custom.shutter"}],
        },
        "lines": [
            "turn.pre agent.request [{'role': 'user', 'content': 'dome.turn'}]",
            *("step.pre", "step.config", "step.tools", "step.blocks"),
            *("toolCall.pre", "toolCall.exec", "toolCall.post"),
            *("step.post c1:ok", "turn.post"),
        ],
        "roles": ["user", "assistant", "tool"],
    }
