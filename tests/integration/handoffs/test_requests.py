"""A request, and its answer."""

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentNotFoundError, HandoffError, ToolCallConflictError
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.words import TELL, answers, ask, chain
from tests.waiting import wait_until

PATIENCE = 60


@pytest.mark.requirement("handoff.flow", "handoff.target-and-input")
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_request_from_outside_is_answered(client: Client, agent: str) -> None:
    answer = client.request(
        agent, {"do": "give", "value": [1, None, "한글"]}, instance_key="i", timeout=PATIENCE
    )
    assert (answer.response, answer.target, answer.accepted) == ([1, None, "한글"], agent, True)
    assert answer.correlation_id
    assert client.pending(answer.correlation_id).result(0).output == [1, None, "한글"]


def test_agent_knows_its_turn_instance_and_event(client: Client) -> None:
    told = client.request(
        "ann",
        TELL,
        instance_key="a/b",
        event_id="e1",
        event_type="task",
        metadata={"m": 1},
        auth={"token": "t"},
        origin={"channel": "c"},
        correlation_id="c1",
        timeout=PATIENCE,
    ).response
    assert (told["agent"], told["instance"], told["turnId"]) == ("ann", "a/b", "turn-e1")
    assert (told["auth"], told["origin"], told["correlationId"]) == ({"token": "t"}, {"channel": "c"}, "c1")
    assert told["workdir"].endswith("/instances/a%2Fb/workspace")
    event = told["event"]
    assert (event["id"], event["type"], event["input"]) == ("e1", "task", TELL)
    assert (event["metadata"], event["instanceKey"]) == ({"m": 1}, "a/b")
    assert event["source"] == {"kind": "connector", "name": "client"}
    assert event["replyTo"] == {"target": "client", "correlationId": "c1"}
    assert event["traceId"] == told["traceId"]


def test_later_answered_request_is_found_by_id(client: Client) -> None:
    asked = client.request("bob", 1, is_async=True, correlation_id="order-7", timeout=PATIENCE)
    told = client.send("bob", 2, correlation_id="order-7")
    assert (asked.correlation_id, told.correlation_id) == ("order-7", "order-7")
    assert client.pending(asked.id).result(PATIENCE).output == 1
    assert client.pending(told.id).result(PATIENCE).output == 2


def test_one_process_with_one_slot_answers_chain_of_four(client: Client) -> None:
    wanted = chain(["east", "south", "west"], TELL)
    told = client.request("north", wanted, instance_key="chain", timeout=PATIENCE).response
    assert [answer["target"] for answer in answers(told)] == ["east", "south", "west"]
    pids = {told["asker"]["pid"]}
    while "answer" in told:
        pids.add(told["asker"]["pid"])
        told = told["answer"]["response"]
    assert pids == {told["pid"]}


def test_chains_cross_on_one_place(client: Client) -> None:
    calls = [
        client.request(
            agents[0], chain(agents[1:], TELL), instance_key=f"{agents[0]}-{number}", is_async=True
        )
        for number in range(20)
        for agents in (["north", "east", "south", "west"], ["west", "south", "east", "north"])
    ]
    results = [client.pending(call.correlation_id).result(PATIENCE) for call in calls]
    assert {result.status for result in results} == {"ok"}
    assert {len(answers(result.output)) for result in results} == {3}


@pytest.mark.requirement("runtime.request", "runtime.request.result")
@pytest.mark.parametrize(("asker", "asked"), [("ann", "bob"), ("bob", "ann"), ("ann", "cid"), ("bob", "dan")])
def test_agent_asks_another_agent(client: Client, asker: str, asked: str) -> None:
    told = client.request(asker, ask(asked, TELL), instance_key="i", timeout=PATIENCE).response
    answer = told["answer"]
    heard = answer["response"]
    assert (answer["target"], heard["agent"]) == (asked, asked)
    assert (answer["eventId"], answer["correlationId"]) == (
        f"answer-{heard['event']['id']}",
        heard["correlationId"],
    )


def test_askers_instance_is_default(client: Client) -> None:
    own = client.request("ann", ask("bob", TELL), instance_key="mine", timeout=PATIENCE).response
    other = client.request(
        "ann", ask("bob", TELL, instance="his"), instance_key="mine", timeout=PATIENCE
    ).response
    assert own["answer"]["response"]["instance"] == "mine"
    assert other["answer"]["response"]["instance"] == "his"


@pytest.mark.requirement("handoff.flow", "handoff.target-and-input")
@pytest.mark.parametrize("tool", ["messenger__ask", "messenger__ask-async"])
@pytest.mark.parametrize("asked", ["bob", "cid"])
def test_tool_asks_agent(client: Client, tool: str, asked: str) -> None:
    args = {"of": asked, "event": {"input": TELL}}
    result = client.call("ann", tool, args, instance_key="i", auth={"token": "t"}, timeout=PATIENCE)
    told = result.output["response"]
    assert (told["agent"], told["instance"], told["auth"]) == (asked, "i", {"token": "t"})
    assert told["traceId"] == result.meta.trace_id
    assert told["event"]["source"] == {"kind": "agent", "name": "ann"}


@pytest.mark.requirement("runtime.send", "runtime.send.result")
@pytest.mark.parametrize("sender", ["ann", "bob"])
def test_event_is_sent_and_not_answered(client: Client, notes: Notebook, sender: str) -> None:
    event = {"input": {"do": "note", "log": notes.path, "note": "hello"}, "instanceKey": "post"}
    sent = client.request(
        sender, {"do": "send", "to": "cid", "event": event}, instance_key="i", timeout=PATIENCE
    )
    assert (sent.response["accepted"], sent.response["target"]) == (True, "cid")
    wait_until(lambda: notes.told() == ["hello"])
    [line] = notes.lines()
    assert (line["agent"], line["instance"], line["event"]["id"]) == ("cid", "post", sent.response["eventId"])
    assert "replyTo" not in line["event"]


@pytest.mark.parametrize("deed", ["send", "request"])
@pytest.mark.parametrize("sender", ["ann", "bob", "outside"])
def test_event_id_with_other_content_raises_conflict(
    client: Client, notes: Notebook, sender: str, deed: str
) -> None:
    first, second = ({"do": "note", "log": notes.path, "note": text} for text in ("first", "second"))
    event_id = f"once-{deed}-{sender}"
    if sender == "outside":
        for _ in range(2):
            assert client.send("cid", first, instance_key="twice", event_id=event_id).accepted
        hand_over = client.send if deed == "send" else client.request
        with pytest.raises(ToolCallConflictError, match=f"cid@twice has an event '{event_id}' with other"):
            hand_over("cid", second, instance_key="twice", event_id=event_id)
    else:
        events = [{"input": one, "id": event_id, "instanceKey": "twice"} for one in (first, first, second)]
        deeds = [{"do": "send", "to": "cid", "event": event} for event in events]
        if deed == "request":
            deeds[-1] = {**ask("cid", second), "event": events[-1]}
        with pytest.raises(HandoffError) as raised:
            client.request(sender, {"do": "each", "wanted": deeds}, timeout=PATIENCE)
        assert raised.value.code == "E_TOOL_CALL_CONFLICT"
    assert client.request("cid", 1, instance_key="twice", timeout=PATIENCE).response == 1
    assert notes.told() == ["first"]


def test_event_from_outside_is_handled(client: Client, notes: Notebook) -> None:
    sent = client.send(
        "bob", {"do": "note", "log": notes.path, "note": 1}, instance_key="post", auth={"a": 1}
    )
    wait_until(lambda: notes.told() == [1])
    [line] = notes.lines()
    assert (line["event"]["id"], line["auth"], line["event"]["type"]) == (
        sent.event_id,
        {"a": 1},
        "agent.send",
    )


def test_events_of_one_instance_are_handled_in_order(client: Client, notes: Notebook) -> None:
    for number in range(100):
        client.send("bob", {"do": "note", "log": notes.path, "note": number}, instance_key="row")
    wait_until(lambda: len(notes.told()) == 100, PATIENCE)
    assert notes.told() == list(range(100))


def test_unknown_agent_is_refused_with_suggestion(client: Client) -> None:
    with pytest.raises(AgentNotFoundError, match="did you mean 'ann'"):
        client.request("anne", 1, timeout=PATIENCE)
    with pytest.raises(HandoffError, match="did you mean 'bob'") as raised:
        client.request("ann", ask("bop", TELL), timeout=PATIENCE)
    assert raised.value.code == "E_AGENT_NOT_FOUND"


@pytest.mark.requirement("runtime.catalog", "runtime.catalog.result")
@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_catalog_names_swarm_and_its_agents(client: Client, agent: str) -> None:
    told = client.request(agent, {"do": "catalog"}, timeout=PATIENCE).response
    assert (told["swarmName"], told["entryAgent"], told["selfAgent"]) == ("default", "ann", agent)
    assert {"ann", "bob", "mute"} <= set(told["callableAgents"]) == set(told["availableAgents"])
