"""Events that are scheduled for later: their places in the mailbox, and requests that wait for them."""

import re
from typing import Any

import pytest
from redis import Redis

from broker_config.connections import redis_time
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.notebook import Notebook
from tests.integration.handoffs.words import ask
from tests.waiting import wait_until

PATIENCE = 60


def test_scheduled_event_is_handled_after_earlier_events(client: Client, notes: Notebook) -> None:
    def note(text: str) -> dict[str, str]:
        return {"do": "note", "log": str(notes.path), "note": text}

    client.send("ann", note("later"), instance_key="in-order", delay=1.5)
    client.send("ann", note("first"), instance_key="in-order")
    client.send("ann", note("second"), instance_key="in-order")
    wait_until(lambda: len(notes.lines()) == 3, PATIENCE)

    assert [line["note"] for line in notes.lines()] == ["first", "second", "later"]


def test_request_delay_precedes_its_timeout(handoffs_stack: LocalStack, client: Client) -> None:
    with Redis.from_url(handoffs_stack.redis_url) as redis:
        begin = redis_time(redis)
    answer = client.request("ann", {"do": "give", "value": 42}, delay=2, timeout=30)

    meta = client.pending(answer.id).result(0).meta
    assert answer.response == 42
    assert epoch_milliseconds(meta.started_at or "") >= begin + 2_000


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_agent_sends_another_one_event_for_later(client: Client, agent: str) -> None:
    wanted = {"do": "send", "to": "cid", "event": {"input": {"do": "tell"}}, "options": {"delay": 3_600}}
    sent = client.request(agent, wanted, timeout=PATIENCE).response
    scheduled = client.pending(sent["id"])

    status = scheduled.status()
    scheduled.cancel()

    assert status == "scheduled"


@pytest.mark.parametrize("agent", ["ann", "bob"])
def test_agent_request_delay_precedes_its_timeout(
    handoffs_stack: LocalStack, client: Client, agent: str
) -> None:
    with Redis.from_url(handoffs_stack.redis_url) as redis:
        begin = redis_time(redis)
    wanted = ask("cid", {"do": "give", "value": 7}, options={"delay": 0.6, "timeoutMs": 1_400_000})
    answer = client.request(agent, wanted, timeout=PATIENCE).response["answer"]

    meta = client.pending(answer["id"]).result(0).meta
    assert answer["response"] == 7
    assert epoch_milliseconds(meta.started_at or "") >= begin + 600


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, "delay: must be a number of seconds"),
        ({"delay": 1, "notBefore": "2026-12-01T09:00Z"}, "give one of the two"),
        ({"notBefore": "tomorrow"}, "is not an ISO 8601 time"),
        ({"notBefore": "2999-12-01T09:00Z"}, "is more than 366 days ahead"),
        ({"before": 1}, "There is no option 'before'"),
    ],
)
def test_wrong_time_of_agents_event_is_its_error(
    client: Client, options: dict[str, Any], message: str
) -> None:
    wanted = {"do": "send", "to": "cid", "event": {"input": 1}, "options": options}
    with pytest.raises(HandoffError, match=re.escape(message)):
        client.request("ann", wanted, timeout=PATIENCE)


def test_scheduled_event_can_be_delivered_now(client: Client) -> None:
    asked, pending = client.ask("ann", {"do": "give", "value": 1}, timeout=PATIENCE, delay=3_600)

    status = pending.status()
    pending.run_now()

    assert status == "scheduled"
    assert asked.not_before is not None
    assert pending.result(PATIENCE).output == 1
