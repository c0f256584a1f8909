"""Agents that would wait for themselves, and chains that go too deep: refused at once, with the path."""

from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import HandoffCycleError, HandoffDepthError, HandoffError
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.words import TELL, answers, ask, chain
from tests.waiting import wait_until

PATIENCE = 60


def refusal(client: Client, agent: str, wanted: Any, instance: str = "i") -> HandoffError:
    """Return the error of a request that must be refused."""
    with pytest.raises(HandoffError) as raised:
        client.request(agent, wanted, instance_key=instance, timeout=PATIENCE)
    return raised.value


@pytest.mark.parametrize("agent", ["ann", "bob", "north", "east"])
def test_request_to_oneself_is_circle(client: Client, agent: str) -> None:
    error = refusal(client, agent, ask(agent, TELL))
    assert type(error) is HandoffCycleError
    assert f"{agent}@i -> {agent}@i" in error.message


@pytest.mark.parametrize(
    ("agent", "via"), [("ann", "cid"), ("ann", "bob"), ("bob", "dan"), ("north", "east")]
)
def test_request_to_one_that_waits_is_circle(client: Client, agent: str, via: str) -> None:
    error = refusal(client, agent, ask(via, ask(agent, TELL)))
    assert type(error) is HandoffCycleError
    assert f"{agent}@i -> {via}@i -> {agent}@i" in error.message


def test_long_circle_names_its_whole_path(client: Client) -> None:
    error = refusal(client, "ann", chain(["bob", "cid", "dan", "ann"], TELL))
    assert "ann@i -> bob@i -> cid@i -> dan@i -> ann@i" in error.message


def test_tool_asking_its_calling_agent_is_cycle(client: Client) -> None:
    args = {"of": "ann", "event": {"input": TELL}}
    told = client.request("ann", {"do": "call", "tool": "messenger__ask", "args": args}, timeout=PATIENCE)
    assert told.response["error"]["code"] == "E_HANDOFF_CYCLE"


def test_same_agent_in_another_instance_is_not_circle(client: Client) -> None:
    wanted = ask("bob", ask("ann", TELL, instance="two"), instance="one")
    told = client.request("ann", wanted, instance_key="one", timeout=PATIENCE).response
    assert answers(told)[-1]["response"]["instance"] == "two"


@pytest.mark.parametrize("agents", [["ann", "cid"], ["ann", "bob"], ["north", "east"]])
def test_chain_deeper_than_sixteen_is_refused(client: Client, agents: list[str]) -> None:
    def deep(hops: int) -> Any:
        wanted: Any = TELL
        for number in reversed(range(hops)):
            wanted = ask(agents[(number + 1) % 2], wanted, instance=f"deep-{number + 1}")
        return wanted

    told = client.request(agents[0], deep(16), instance_key="deep-0", timeout=PATIENCE).response
    assert len(answers(told)) == 16
    error = refusal(client, agents[0], deep(17), "deep-0")
    assert type(error) is HandoffDepthError
    assert "deep-0" in error.message
    assert f"{agents[1]}@deep-17" in error.message


def test_events_that_chase_each_other_end(client: Client, notes: Notebook) -> None:
    wanted: Any = {"do": "note", "log": notes.path, "note": "too deep"}
    for number in reversed(range(17)):
        event = {"input": wanted, "instanceKey": f"chase-{number}"}
        wanted = {"do": "send", "to": ("ann", "bob")[number % 2], "event": event}
    sent = client.request("bob", wanted, instance_key="chase", timeout=PATIENCE)
    assert sent.accepted

    def last() -> list[str]:
        return [one.id for one in client.calls("bob") if one.call.instance_key == "chase-15"]

    wait_until(last, PATIENCE)
    error = client.pending(last()[0]).result(PATIENCE).error
    assert error is not None
    assert error.code == "E_HANDOFF_DEPTH"
    assert notes.told() == []


@pytest.mark.parametrize("way", ["send", "ask"])
def test_agent_that_does_not_wait_may_be_asked(client: Client, notes: Notebook, way: str) -> None:
    """The asked one asks back; whoever gave it the work has ended its Turn, or soon will."""
    back = {
        "do": "ask",
        "of": "ann",
        "event": {"input": {"do": "note", "log": notes.path, "note": "asked back"}},
    }
    wanted = {"do": "send", "to": "bob", "event": {"input": back}}
    if way == "ask":
        wanted = ask("bob", back, options={"async": True})
    client.request("ann", wanted, instance_key=f"back-{way}", timeout=PATIENCE)
    wait_until(lambda: notes.told() == ["asked back"])
