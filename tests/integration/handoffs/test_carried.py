"""What a handoff carries: auth, trace, chain and ids, in the ledger and in the raw messages."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.conftest import HANDOFFS_BUNDLE
from tests.integration.handoffs.raw_messages import PlainProducer, messages
from tests.integration.handoffs.words import TELL, answers, ask, chain
from tests.waiting import wait_until

PATIENCE = 60
AUTH = {"token": "t", "scopes": ["a", None], "none": None}
ORIGIN = {"channel": "c", "thread": None}


@pytest.fixture(scope="module")
def quiet() -> Iterator[LocalStack]:
    """A Redis without workers: messages stay where they are put."""
    with LocalStack(HANDOFFS_BUNDLE, workers=0) as stack:
        yield stack


def told_by_all(told: Any) -> list[Any]:
    """Return what each agent of a chain told of itself, the outermost first."""
    return [told["asker"], *told_by_all(told["answer"]["response"])] if "asker" in told else [told]


@pytest.mark.requirement("handoff.correlation")
def test_auth_origin_and_trace_stay_same_along_chain(client: Client) -> None:
    wanted = chain(["bob", "cid", "dan", "east", "north"], TELL)
    answer = client.request("ann", wanted, instance_key="carry", auth=AUTH, origin=ORIGIN, timeout=PATIENCE)
    told = told_by_all(answer.response)
    assert [one["agent"] for one in told] == ["ann", "bob", "cid", "dan", "east", "north"]
    assert all((one["auth"], one["origin"]) == (AUTH, ORIGIN) for one in told)
    assert all(one["event"]["auth"] == AUTH for one in told)
    assert len({one["traceId"] for one in told}) == 1
    assert len({one["correlationId"] for one in told}) == 6


def test_every_hop_has_span_parent_and_whole_chain(client: Client) -> None:
    agents = ["bob", "cid", "dan", "east"]
    answer = client.request("ann", chain(agents, TELL), instance_key="hops", timeout=PATIENCE)
    hops = [answer.correlation_id, *(one["correlationId"] for one in answers(answer.response))]
    calls = [client.record(hop).call for hop in hops]
    assert [call.agent_name for call in calls] == ["ann", *agents]
    assert len({call.span_id for call in calls}) == len(calls)
    assert len({call.trace_id for call in calls}) == 1
    assert [call.parent_id for call in calls] == [None, *hops[:-1]]
    assert [call.root_id for call in calls] == [None, *[hops[0]] * 4]
    names = [f"{name}@hops" for name in ("ann", *agents)]
    assert [call.call_chain for call in calls] == [tuple(names[:length]) for length in range(5)]
    assert all(call.correlation_id for call in calls)


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_agent_cannot_forge_fields_of_its_handoff(client: Client, agent: str) -> None:
    event = {
        "input": TELL,
        "auth": {"token": "forged"},
        "traceId": "f" * 32,
        "source": {"kind": "connector", "name": "client"},
        "replyTo": {"target": "dan", "correlationId": "mine"},
    }
    wanted = {"do": "ask", "of": "cid", "event": event}
    answer = client.request(agent, wanted, instance_key="forge", auth={"token": "t"}, timeout=PATIENCE)
    asker, told = told_by_all(answer.response)
    assert (told["auth"], told["event"]["auth"]) == ({"token": "t"}, {"token": "t"})
    assert told["traceId"] == told["event"]["traceId"] == asker["traceId"] != "f" * 32
    assert told["event"]["source"] == {"kind": "agent", "name": agent}
    assert told["event"]["replyTo"] == {"target": agent, "correlationId": "mine"}


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_without_auth_none_is_made_up(client: Client, agent: str) -> None:
    event = {"input": TELL, "auth": {"token": "forged"}}
    answer = client.request(agent, {"do": "ask", "of": "cid", "event": event}, timeout=PATIENCE)
    assert told_by_all(answer.response)[-1]["auth"] is None


def test_tools_request_has_auth_of_its_call(client: Client) -> None:
    event = {"input": TELL, "auth": {"token": "forged"}}
    wanted = {"do": "call", "tool": "messenger__ask", "args": {"of": "bob", "event": event}}
    answer = client.request("ann", wanted, instance_key="tool", auth=AUTH, timeout=PATIENCE)
    told = answer.response["output"]["response"]
    assert told["auth"] == AUTH
    record = client.record(answer.response["output"]["correlationId"])
    assert record.call.call_chain == ("ann@tool",)
    assert record.call.root_id == answer.correlation_id
    assert record.call.parent_id == answer.response["meta"]["id"]


@pytest.mark.requirement("handoff.correlation")
@pytest.mark.parametrize("asker", ["ann", "bob"])
def test_correlation_id_finds_askers_turn_and_trace(client: Client, asker: str) -> None:
    answer = client.request(asker, ask("cid", TELL), instance_key="back", timeout=PATIENCE)
    told = answer.response["answer"]["response"]

    handed = client.record(told["correlationId"]).call
    above = client.record(handed.parent_id or "").call

    assert (above.agent_name, above.instance_key) == (asker, "back")
    assert (above.turn_id, above.trace_id) == (answer.response["asker"]["turnId"], told["traceId"])
    assert answer.response["answer"]["correlationId"] == told["correlationId"]


@pytest.mark.requirement("ipc.message-form")
def test_event_and_answer_are_messages_of_same_form(quiet: LocalStack) -> None:
    quiet.client.send("mute", {"n": 1}, instance_key="form")
    [(headers, event)] = messages(quiet.client._redis, "mute")
    assert headers["task"] == "goondan.event"
    assert (event["type"], event["from"], event["to"]) == ("event", "client", "mute")
    assert event["payload"]["input"] == {"n": 1}
    assert event["correlationId"] == headers["id"]

    worker = quiet.start_worker(["bob"])
    asked = {"type": "delegate", "from": "muse", "fromInstanceKey": "asking", "to": "bob",
             "payload": {"input": 7}, "correlationId": "c1"}  # fmt: skip
    with PlainProducer(quiet.redis_url) as producer:
        producer.answer(producer.send("bob", asked))
    wait_until(lambda: messages(quiet.client._redis, "muse"))
    quiet.stop_worker(worker)
    [(headers, answer)] = messages(quiet.client._redis, "muse")
    assert headers["task"] == "goondan.delegate_result"
    assert (answer["type"], answer["from"], answer["to"]) == ("delegate_result", "bob", "muse")
    assert (answer["correlationId"], answer["toInstanceKey"]) == ("c1", "asking")
    assert (answer["payload"]["status"], answer["payload"]["response"]) == ("ok", 7)


@pytest.mark.requirement("ipc.message-form")
def test_message_says_everything(quiet: LocalStack) -> None:
    answer = quiet.client.request(
        "ann", {"n": None}, instance_key="raw", event_id="e1", auth=AUTH, origin=ORIGIN, is_async=True
    )
    [(headers, message)] = messages(quiet.client._redis, "ann")
    identity = str(uuid.uuid5(uuid.NAMESPACE_URL, 'goondan:["ann","raw","turn-e1","e1"]'))
    assert (headers["task"], headers["id"]) == ("goondan.delegate", identity)
    assert (headers["root_id"], headers["parent_id"]) == (identity, None)
    assert answer.correlation_id == identity == message["correlationId"]
    assert (message["type"], message["from"], message["to"]) == ("delegate", "client", "ann")
    assert (message["toInstanceKey"], message["fromInstanceKey"]) == ("raw", "raw")
    assert (message["auth"], message["origin"]) == (AUTH, ORIGIN)
    assert len(message["traceId"]) == 32
    assert len(message["spanId"]) == 16
    assert message["payload"]["input"] == {"n": None}
    assert "deadline" in message
    assert message["callChain"] == []


def test_messages_of_chain_are_chained(quiet: LocalStack) -> None:
    worker = quiet.start_worker(["ann"])
    wanted = ask("bob", TELL, options={"timeoutMs": 5000})
    asked = quiet.client.request("ann", wanted, instance_key="links", event_id="e2", is_async=True, auth=AUTH)
    pending = quiet.client.pending(asked.correlation_id)
    while not (found := messages(quiet.client._redis, "bob")):
        assert not pending._expected.is_there
    quiet.stop_worker(worker)
    [(headers, message)] = found
    assert (headers["root_id"], headers["parent_id"]) == (asked.correlation_id, asked.correlation_id)
    assert headers["id"] == message["correlationId"] != asked.correlation_id
    assert (message["from"], message["fromInstanceKey"], message["toInstanceKey"]) == (
        "ann",
        "links",
        "links",
    )
    assert (message["callChain"], message["auth"]) == (["ann@links"], AUTH)
    first = quiet.client.record(asked.correlation_id).call
    assert message["traceId"] == first.trace_id
    assert message["spanId"] != first.span_id


def test_same_event_sent_twice_runs_once(client: Client) -> None:
    first = client.request("bob", TELL, instance_key="same", event_id="e1", timeout=PATIENCE)
    again = client.request("bob", TELL, instance_key="same", event_id="e1", timeout=PATIENCE)
    other = client.request("bob", TELL, instance_key="same", event_id="e2", timeout=PATIENCE)
    assert again.correlation_id == first.correlation_id != other.correlation_id
    assert again.response == first.response
