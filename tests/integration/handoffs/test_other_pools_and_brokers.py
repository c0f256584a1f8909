"""Handoffs under Celery's own pool, through another broker, and with few who may wait."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.client import Client
from goondan_tasks.errors import HandoffError
from goondan_tasks.testing import LocalStack
from tests.faults.celery_workers import OtherBrokerStack, celery_workers
from tests.integration.handoffs.conftest import GUILD
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.words import TELL, answers, ask, chain
from tests.waiting import wait_until

PATIENCE = 60
AGENTS = ["ann", "bob", "cid", "dan"]
QUEUES = ",".join(f"agent.{agent},agent.{agent}.events" for agent in AGENTS)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[LocalStack]:
    """Workers whose queues are in another database than the ledger."""
    with (
        EmbeddedRedis() as broker,
        OtherBrokerStack(GUILD, workers=0).through(broker.url) as stack,
    ):
        stack.start_worker(["ann", "cid"])
        stack.start_worker(["bob", "dan"])
        yield stack


@pytest.mark.parametrize("where", ["threads", "elsewhere"])
def test_a_chain_is_answered(request: pytest.FixtureRequest, where: str) -> None:
    client: Client = request.getfixturevalue(where).client
    answer = client.request("ann", chain(["bob", "cid", "dan"], TELL), instance_key="c", timeout=PATIENCE)
    assert [one["target"] for one in answers(answer.response)] == ["bob", "cid", "dan"]


@pytest.mark.parametrize("where", ["threads", "elsewhere"])
def test_the_next_message_of_a_mailbox_comes(
    request: pytest.FixtureRequest, notes: Notebook, tmp_path: Path, where: str
) -> None:
    client: Client = request.getfixturevalue(where).client
    until = tmp_path / "go on"
    client.send("bob", {"do": "wait", "log": notes.path, "until": str(until)}, instance_key="box")
    wait_until(lambda: notes.told() == ["start"], PATIENCE)
    for number in range(20):
        client.send("bob", {"do": "note", "log": notes.path, "note": number}, instance_key="box")
    assert client.request("bob", 1, instance_key="another", timeout=PATIENCE).response == 1
    until.touch()
    wait_until(lambda: len(notes.told()) == 22, PATIENCE)
    assert notes.told() == ["start", "end", *range(20)]


@pytest.mark.parametrize("where", ["threads", "elsewhere"])
def test_an_answer_comes_as_an_event(request: pytest.FixtureRequest, notes: Notebook, where: str) -> None:
    client: Client = request.getfixturevalue(where).client
    events = [
        {
            "input": {"do": "give", "value": {"do": "note", "log": notes.path, "note": one}},
            "instanceKey": f"h-{one}",
        }
        for one in range(10)
    ]
    client.request(
        "bob", {"do": "ask-many", "of": "ann", "events": events}, instance_key="a", timeout=PATIENCE
    )
    wait_until(lambda: len(notes.lines()) == 10, PATIENCE)
    assert sorted(notes.told()) == list(range(10))
    assert {(line["agent"], line["instance"]) for line in notes.lines()} == {("bob", "a")}


@pytest.mark.parametrize("where", ["threads", "elsewhere"])
def test_errors_and_circles_are_told(request: pytest.FixtureRequest, where: str) -> None:
    client: Client = request.getfixturevalue(where).client
    with pytest.raises(HandoffError, match="on purpose"):
        client.request("ann", ask("bob", {"do": "fail", "why": "on purpose"}), timeout=PATIENCE)
    with pytest.raises(HandoffError) as raised:
        client.request("ann", ask("bob", ask("ann", TELL)), instance_key="circle", timeout=PATIENCE)
    assert raised.value.code == "E_HANDOFF_CYCLE"


@pytest.mark.parametrize("where", ["threads", "elsewhere"])
def test_producer_receives_events_under_other_pools_and_brokers(
    request: pytest.FixtureRequest, where: str
) -> None:
    client: Client = request.getfixturevalue(where).client
    asked = client.request("bob", ask("mute", 1), instance_key="brain", is_async=True, timeout=PATIENCE)
    received = client.receive("mute", timeout=PATIENCE)
    assert received is not None
    client.reply(received, 2)
    told = client.pending(asked.correlation_id).result(PATIENCE).output
    assert told["answer"]["response"] == 2


@pytest.mark.parametrize("agents", [("north", "east", "south"), ("east", "north", "west")])
def test_request_that_may_not_wait_is_refused_and_not_sent(agents: tuple[str, str, str]) -> None:
    environment = {"GOONDAN_MAX_WAITING": "1"}
    with LocalStack(GUILD, agents=list(agents), concurrency=1, environment=environment) as stack:
        first, second, third = agents
        with pytest.raises(HandoffError) as raised:
            stack.client.request(first, ask(second, ask(third, TELL)), instance_key="l", timeout=PATIENCE)
        assert raised.value.code == "E_LIMIT"
        assert "GOONDAN_MAX_WAITING" in (raised.value.suggestion or "")
        assert stack.client.calls(third) == []
        told = stack.client.request(first, ask(second, TELL), instance_key="l", timeout=PATIENCE).response
        assert answers(told)[0]["target"] == second


def test_no_message_is_in_the_ledgers_redis(elsewhere: LocalStack) -> None:
    assert elsewhere.client.request("ann", ask("bob", TELL), timeout=PATIENCE).accepted
    assert elsewhere.client._redis.keys("agent.*") == []
