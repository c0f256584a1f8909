"""Tools of the older version behind real workers: their Turn, their errors and what the model is told."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack

V1_PROFILE_BUNDLE = Path(__file__).parent.parent / "bundles" / "v1-profile"
AGENT = "curator"

PATIENCE = 60


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalStack(V1_PROFILE_BUNDLE, agents=[AGENT]) as stack:
        yield stack.client


def own(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"id": call_id, "name": name, "arguments": arguments}


@pytest.mark.requirement("v1.turn", "v1.step", "v1.tool-message")
def test_turn_shows_messages_of_its_earlier_steps(client: Client) -> None:
    turn = client.turn(AGENT, "k1", origin={"channel": "C1"})
    asked = {"role": "user", "content": "6 times 7?"}
    first = turn.step(asked, timeout=PATIENCE)
    calls = [own("c1", "calc.multiply", {"a": 6, "b": 7}), own("c2", "look.hard", {})]
    [product, failed] = first.run(calls, timeout=PATIENCE)
    second = turn.step(product.message, timeout=PATIENCE)
    [looked] = second.run([own("c1", "look.around", {"at": "all"})], timeout=PATIENCE)

    answers = [product.message, failed.message]
    output = {"result": 42, "expression": "6 \N{MULTIPLICATION SIGN} 7 = 42"}
    assert product.message == {
        "role": "tool",
        "toolCallId": "c1",
        "toolName": "calc.multiply",
        "output": output,
    }
    assert failed.message["output"] == failed.output
    seen = looked.output
    # a model repeats its ids, Step after Step
    assert seen["step"]["pending_tool_calls"] == [own("c1", "look.around", {"at": "all"})]
    assert seen["turn"]["messages"] == [
        asked,
        {"role": "assistant", "toolCalls": calls},
        *answers,
        {"role": "assistant", "toolCalls": [own("c1", "look.around", {"at": "all"})]},
    ]
    assert {name: result["status"] for name, result in seen["turn"]["toolResults"].items()} == {
        "c1": "ok",
        "c2": "error",
    }
    assert seen["turn"]["origin"] == {"channel": "C1"}
    assert (seen["step"]["id"], seen["step"]["index"]) == (second.id, 1)
    assert set(seen["catalog"]) == set(second.catalog.names)


def test_provider_without_dots_maps_name_and_reads_error_once(client: Client) -> None:
    step = client.turn(AGENT, "k2").step(timeout=PATIENCE)
    name = step.catalog.provider_name("look.hard")
    function = {"name": name, "arguments": "{}"}

    [result] = step.run([{"id": "c1", "type": "function", "function": function}], timeout=PATIENCE)

    assert "." not in name
    told = json.loads(result.message["content"])
    assert set(told) == {"status", "error"}
    assert told["error"]["code"] == "E_CHANNEL_NOT_FOUND"


@pytest.mark.requirement("v1.error-in-output")
def test_error_from_outside_handler_is_in_output(client: Client) -> None:
    late = client.call(AGENT, "look.long", {}, timeout=PATIENCE)
    begun = client.submit(AGENT, "build.start", {"project": "1"})
    assert begun.result(timeout=PATIENCE).handle == "build-1"
    client.fail(begun.id, "out of paint")
    broken = begun.result(timeout=PATIENCE, wait_pending=True)

    assert late.error is not None
    assert late.error.code == "E_TOOL_TIMEOUT"
    assert late.output["error"]["code"] == "E_TOOL_TIMEOUT"
    assert broken.error is not None
    assert broken.output == {
        "status": "error",
        "error": {"message": "out of paint", "name": broken.error.name, "code": broken.error.code},
    }
