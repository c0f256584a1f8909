"""Requests whose asker does not wait: the answers come to its mailbox, as events."""

from collections import Counter
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL
from tests.integration.handoffs.notebook import Notebook
from tests.waiting import wait_until

PATIENCE = 60

#: how many answers of each helper one Turn asks for
MANY = {"ann": 60, "dan": 50}


def is_answer(call: ToolCall, instance: str) -> bool:
    """Say whether it is an answer in the mailbox of an instance."""
    return call.tool_name == DELEGATE_RESULT_TOOL and call.instance_key == instance


@pytest.mark.requirement("handoff.async")
def test_each_of_many_answers_reaches_asking_instance(
    client: Client, notes: Notebook, tmp_path: Path
) -> None:
    asked: dict[str, str] = {}
    bystander = Notebook(tmp_path / "bystander.jsonl")
    for helper, count in MANY.items():
        events = [
            {
                "input": {"do": "give", "value": {"do": "note", "log": notes.path, "note": [helper, one]}},
                "instanceKey": f"helper-{one % 7}",
                "metadata": {"one": one},
            }
            for one in range(count)
        ]
        wanted = {"do": "ask-many", "of": helper, "events": events}
        told = client.request("bob", wanted, instance_key=f"asker-{helper}", timeout=PATIENCE).response
        assert all(answer["accepted"] and answer["async"] for answer in told)
        asked |= {answer["correlationId"]: f"asker-{helper}" for answer in told}
    client.send("bob", {"do": "note", "log": bystander.path}, instance_key="bystander")
    assert len(asked) == sum(MANY.values())
    wait_until(lambda: len(notes.lines()) == len(asked), 120)
    lines = notes.lines()
    assert {line["agent"] for line in lines} == {"bob"}
    assert {line["event"]["metadata"]["inReplyTo"]: line["instance"] for line in lines} == asked
    assert Counter(tuple(line["note"]) for line in lines) == Counter(
        (helper, one) for helper, count in MANY.items() for one in range(count)
    )
    assert all(f"asker-{line['note'][0]}" == line["instance"] for line in lines)
    wait_until(lambda: len(bystander.lines()) == 1)


def test_answer_tells_of_request(client: Client, notes: Notebook) -> None:
    event = {
        "input": {"do": "give", "value": {"do": "note", "log": notes.path}},
        "type": "review.request",
        "metadata": {"pull": 7},
    }
    wanted = {"do": "ask", "of": "bob", "event": event, "options": {"async": True}}
    told = client.request("ann", wanted, instance_key="i", auth={"t": 1}, timeout=PATIENCE).response
    wait_until(notes.lines)
    [line] = notes.lines()
    about = line["event"]["metadata"]["__goondanInterAgentResponse"]
    assert (line["agent"], line["instance"], line["auth"]) == ("ann", "i", {"t": 1})
    assert (line["event"]["type"], line["event"]["source"]) == ("response", {"kind": "agent", "name": "bob"})
    assert line["traceId"] == told["asker"]["traceId"]
    assert line["correlationId"] == told["answer"]["correlationId"] == about["requestId"]
    assert (about["requestEventId"], about["status"]) == (told["answer"]["eventId"], "ok")
    assert (about["requestEventType"], about["requestMetadata"]) == ("review.request", {"pull": 7})


@pytest.mark.parametrize(
    ("wanted", "milliseconds", "code"),
    [
        ({"do": "fail", "why": "on purpose"}, PATIENCE * 1000, "E_AGENT_FAILED"),
        ({"do": "wait", "log": "/dev/null", "until": "/no/such"}, 500, "E_HANDOFF_TIMEOUT"),
    ],
)
def test_answer_may_be_error(client: Client, wanted: dict[str, str], milliseconds: int, code: str) -> None:
    options = {"async": True, "timeoutMs": milliseconds}
    asking = {"do": "ask", "of": "bob", "event": {"input": wanted}, "options": options}
    client.request("ann", asking, instance_key=f"error-{code}", timeout=PATIENCE)

    def answers() -> list[dict[str, object]]:
        calls = [one.call for one in client.calls("ann")]
        return [call.args["payload"] for call in calls if is_answer(call, f"error-{code}")]

    wait_until(answers)
    [payload] = answers()
    assert payload["status"] == "error"
    assert isinstance(payload["error"], dict)
    assert payload["error"]["code"] == code


def test_tool_need_not_wait_for_answer(client: Client, notes: Notebook) -> None:
    event = {"input": {"do": "give", "value": {"do": "note", "log": notes.path, "note": "for the agent"}}}
    args = {"of": "bob", "event": event, "options": {"async": True}}
    result = client.call("ann", "messenger__ask", args, instance_key="tool", timeout=PATIENCE)
    assert (result.output["accepted"], result.output["async"]) == (True, True)
    wait_until(lambda: notes.told() == ["for the agent"])
    assert [(line["agent"], line["instance"]) for line in notes.lines()] == [("ann", "tool")]


@pytest.mark.parametrize("agent", ["ann", "dan"])
def test_answer_waits_for_turn_that_asked(
    client: Client, notes: Notebook, tmp_path: Path, agent: str
) -> None:
    """The answer to one's own request cannot overtake one's own Turn."""
    note = {"do": "note", "log": notes.path}
    asking = {
        "do": "ask",
        "of": "bob",
        "event": {"input": {"do": "give", "value": {**note, "note": "answer"}}},
        "options": {"async": True},
    }
    waiting = {"do": "wait", "log": "/dev/null", "until": str(tmp_path / "go")}
    turn = {"do": "each", "wanted": [asking, waiting, {**note, "note": "asked"}]}
    client.send(agent, turn, instance_key="turns")
    wait_until(lambda: [one for one in client.calls(agent) if is_answer(one.call, "turns")], PATIENCE)
    client.send(agent, {**note, "note": "after"}, instance_key="turns")
    (tmp_path / "go").touch()
    wait_until(lambda: len(notes.told()) == 3, PATIENCE)
    assert notes.told() == ["asked", "answer", "after"]
