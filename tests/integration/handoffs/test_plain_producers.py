"""Messages from Celery programs without this package, well-meant and hostile."""

from collections.abc import Iterator
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.raw_messages import PlainProducer
from tests.integration.handoffs.words import TELL
from tests.waiting import wait_until

EVENT: dict[str, Any] = {
    "id": "e1",
    "type": "task",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "source": {"kind": "connector", "name": "cli"},
    "input": TELL,
}


@pytest.fixture(scope="module")
def plain(handoffs_stack: LocalStack) -> Iterator[PlainProducer]:
    with PlainProducer(handoffs_stack.redis_url) as producer:
        yield producer


def message(to: str, payload: Any = EVENT, *, type: str = "delegate", **fields: Any) -> dict[str, Any]:
    return {"type": type, "from": "client", "to": to, "payload": payload, **fields}


@pytest.mark.requirement("ipc.message-form")
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_request_is_answered(plain: PlainProducer, agent: str) -> None:
    sent = message(
        agent,
        correlationId="c1",
        toInstanceKey="plain",
        traceId="0123456789abcdef0123456789abcdef",
        auth={"token": "t"},
        origin={"o": 1},
    )
    task_id = plain.send(agent, sent, wakes=False)
    answer = plain.answer(task_id)
    told = answer["output"]
    assert (answer["status"], answer["meta"]["id"], answer["meta"]["correlationId"]) == ("ok", task_id, "c1")
    assert (told["instance"], told["auth"], told["origin"]) == ("plain", {"token": "t"}, {"o": 1})
    assert told["traceId"] == "0123456789abcdef0123456789abcdef"
    assert (told["event"]["type"], told["event"]["source"]) == ("task", {"kind": "connector", "name": "cli"})


def test_fields_missing_from_message_are_filled_in(plain: PlainProducer) -> None:
    task_id = plain.send("bob", message("bob", {"input": TELL}))
    told = plain.answer(task_id)["output"]
    assert (told["instance"], told["correlationId"], told["turnId"]) == (
        "default",
        task_id,
        f"turn-{task_id}",
    )
    assert (told["traceId"], told["event"]["type"]) == (task_id.replace("-", ""), "agent.request")


def test_event_is_handled(plain: PlainProducer, notes: Notebook) -> None:
    event = {**EVENT, "instanceKey": "of the event", "input": {"do": "note", "log": notes.path}}
    task_id = plain.send("cid", message("cid", event, type="event"), task="goondan.event")
    assert plain.answer(task_id)["status"] == "ok"
    assert [line["instance"] for line in notes.lines()] == ["of the event"]


def test_answer_goes_to_agent_that_message_is_from(plain: PlainProducer, notes: Notebook) -> None:
    event = {**EVENT, "input": {"do": "give", "value": {"do": "note", "log": notes.path}}}
    sent = message("bob", event, **{"from": "ann", "fromInstanceKey": "asker", "toInstanceKey": "asked"})
    plain.answer(plain.send("bob", sent))
    wait_until(notes.lines)
    [line] = notes.lines()
    assert (line["agent"], line["instance"], line["event"]["type"]) == ("ann", "asker", "response")


def test_answer_sent_by_hand_is_handled(plain: PlainProducer, notes: Notebook) -> None:
    payload = {"eventId": "e1", "status": "ok", "response": {"do": "note", "log": notes.path}}
    sent = message("ann", payload, type="delegate_result", correlationId="c1")
    task_id = plain.send("ann", sent, task="goondan.delegate_result")
    assert plain.answer(task_id)["status"] == "ok"
    assert [line["event"]["metadata"]["inReplyTo"] for line in notes.lines()] == ["c1"]


@pytest.mark.parametrize(
    ("chain", "code"),
    [
        (["ann@plain"], "E_HANDOFF_CYCLE"),
        (["bob@x", "ann@plain", "cid@y"], "E_HANDOFF_CYCLE"),
        ([f"bob@{number}" for number in range(17)], "E_HANDOFF_DEPTH"),
    ],
)
def test_circle_is_refused_with_its_path(plain: PlainProducer, chain: list[str], code: str) -> None:
    task_id = plain.send("ann", message("ann", toInstanceKey="plain", callChain=chain))
    error = plain.answer(task_id)["error"]
    assert error["code"] == code
    assert " -> ".join([*chain, "ann@plain"]) in error["message"]


def test_circle_is_reported_to_asking_agent(plain: PlainProducer, client: Client) -> None:
    sent = message(
        "ann", toInstanceKey="p", callChain=["ann@p"], **{"from": "bob", "fromInstanceKey": "circle"}
    )
    plain.answer(plain.send("ann", sent))

    def answers() -> list[Any]:
        return [
            one.call.args["payload"]["error"]["code"]
            for one in client.calls("bob")
            if one.call.instance_key == "circle"
        ]

    wait_until(answers)
    assert answers() == ["E_HANDOFF_CYCLE"]


def test_request_to_agent_not_waiting_is_no_circle(plain: PlainProducer) -> None:
    sent = message("ann", toInstanceKey="plain", callChain=["ann@plain", "bob@plain"], waiting=1)
    assert plain.answer(plain.send("ann", sent))["status"] == "ok"


LONG = "a" * 300
HOSTILE: dict[str, Any] = {
    "no object": "text",
    "null": None,
    "empty": {},
    "payload is text": message("ann", "text"),
    "payload is null": message("ann", None),
    "payload is a list": message("ann", []),
    "no type": {"from": "client", "to": "ann", "payload": EVENT},
    "another type": message("ann", type="letter"),
    "type of another task": message("ann", type="event"),
    "wrong agent": message("bob"),
    "no agent": message(""),
    "agent is a number": message("ann") | {"to": 5},
    "from is a number": message("ann") | {"from": 5},
    "chain is text": message("ann", callChain="ann@x"),
    "chain of numbers": message("ann", callChain=[1, 2]),
    "instance is a list": message("ann", toInstanceKey=[]),
    "trace is a number": message("ann", traceId=5),
    "auth is text": message("ann", auth="root"),
    "deadline is not a time": message("ann", deadline="soon"),
    "deadline is over": message("ann", deadline="2020-01-01T00:00:00Z"),
    "no time at all": message("ann", timeoutSeconds=0),
    "newer version": message("ann", v=99),
    "event id is a number": message("ann", {**EVENT, "id": 5}),
    "source is text": message("ann", {**EVENT, "source": "x"}),
    "huge": message("ann", {**EVENT, "input": "x" * 2_000_000}),
    "waiting is negative": message("ann", waiting=-1),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_message_that_cannot_be_handled_is_answered(plain: PlainProducer, client: Client, name: str) -> None:
    answer = plain.answer(plain.send("ann", HOSTILE[name]))
    assert answer["status"] == "error"
    assert answer["error"]["code"] in {
        "E_TOOL_INVALID_ARGS",
        "E_PAYLOAD_TOO_LARGE",
        "E_HANDOFF_TIMEOUT",
        "E_TOOL_NOT_IN_CATALOG",
    }
    assert client.request("ann", 1, timeout=30).response == 1
    assert client._redis.llen("agent.ann.events") == 0
    assert client._redis.keys("goondan:mailbox:ann@*") == []


ODD_NAMES = [LONG, "../../etc", "a/b", "ann@x", "", "ann\nbob", "\x00"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_sender_with_odd_name_gets_no_mailbox(plain: PlainProducer, client: Client, name: str) -> None:
    sent = message("ann") | {"from": name, "fromInstanceKey": "../.."}
    assert plain.answer(plain.send("ann", sent))["status"] == "ok"
    assert client._redis.keys("goondan:mailbox:*") == []


@pytest.mark.parametrize("key", [LONG, "../../etc/passwd", "a/b@c", "", " ", "ann\nbob", "*", "x" * 100_000])
def test_odd_instance_key_gets_own_instance_or_refusal(
    plain: PlainProducer, client: Client, key: str
) -> None:
    answer = plain.answer(plain.send("ann", message("ann", toInstanceKey=key)))
    if answer["status"] == "ok":
        assert "/instances/" in answer["output"]["workdir"]
        assert ".." not in answer["output"]["workdir"].split("/")
    assert client.request("ann", 1, timeout=30).response == 1
    assert client._redis.keys("goondan:mailbox:*") == []


@pytest.mark.parametrize("payload", [
    {"eventId": 5, "status": "ok"},
    {"eventId": "e", "status": "ok", "answeredAt": 5},
    {"eventId": "e", "status": "error", "error": "text"},
    {"eventId": "e", "status": "error", "error": {"code": [], "message": {}}},
    {"eventId": "e", "metadata": "text"},
    {"status": "ok"},
])  # fmt: skip
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_malformed_answer_does_not_block_other_messages(
    plain: PlainProducer, client: Client, agent: str, payload: dict[str, Any]
) -> None:
    sent = message(agent, payload, type="delegate_result")
    answer = plain.answer(plain.send(agent, sent, task="goondan.delegate_result"))
    assert answer["status"] == "ok" or answer["error"]["code"] == "E_TOOL_INVALID_ARGS"
    assert client.request(agent, 1, timeout=30).response == 1
    assert client._redis.keys(f"goondan:mailbox:{agent}@*") == []


@pytest.mark.parametrize("tool", ["goondan__event", "goondan__delegate", "goondan__delegate-result"])
def test_event_that_comes_as_tool_call_is_refused(
    plain: PlainProducer, client: Client, notes: Notebook, tool: str
) -> None:
    event = {**EVENT, "input": {"do": "note", "log": notes.path}}
    args = {"from": "bob", "fromInstanceKey": "i", "payload": event, "awaited": False}
    call = {"toolName": tool, "args": args, "agentName": "ann"}
    by_client = client.call("ann", tool, args, timeout=30)
    task_id = plain._app.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.ann").id
    by_agent = client.request("ann", {"do": "call", "tool": "messenger__say"}, timeout=30)
    assert by_agent.response["status"] == "ok"
    assert by_client.status == "error"
    assert plain.answer(task_id)["error"]["code"] == "E_TOOL_NOT_IN_CATALOG"
    assert notes.lines() == []


def test_agent_cannot_call_itself_as_tool(client: Client) -> None:
    args = {"from": "bob", "payload": EVENT, "auth": {"forged": True}}
    wanted = {"do": "call", "tool": "goondan__delegate", "args": args}
    with pytest.raises(Exception, match="not a tool"):
        client.request("ann", wanted, timeout=30)


def test_event_message_on_tool_call_queue_is_handled(plain: PlainProducer) -> None:
    assert plain.answer(plain.send("ann", message("ann"), queue="agent.ann"))["status"] == "ok"


def test_same_message_twice_is_handled_once(plain: PlainProducer, notes: Notebook) -> None:
    event = {**EVENT, "input": {"do": "note", "log": notes.path}}
    for _ in range(3):
        plain.send("bob", message("bob", event), task_id="11111111-1111-1111-1111-111111111111")
    plain.answer("11111111-1111-1111-1111-111111111111")
    plain.answer(plain.send("bob", message("bob")))
    assert len(notes.lines()) == 1


def test_task_id_reused_for_another_event_makes_dead_letter(
    plain: PlainProducer, notes: Notebook, client: Client
) -> None:
    task_id = "22222222-2222-2222-2222-222222222222"
    for text in ("first", "second"):
        wanted = {"do": "note", "log": notes.path, "note": text}
        plain.send("bob", message("bob", {**EVENT, "input": wanted}), task_id=task_id)
        plain.answer(task_id)  # workers may accept messages that wait together in any order

    def reasons() -> list[str]:
        return [str(letter.call.args.get("reason")) for letter in client.dead_letters("bob")]

    wait_until(lambda: any(task_id in reason and "E_TOOL_CALL_CONFLICT" in reason for reason in reasons()))
    assert notes.told() == ["first"]
