"""Cancelling many calls: what a filter selects, and what is left in the queues."""

from typing import Unpack

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.client import connection as client_connection
from goondan_tasks.contract.calls import identity_of, queue_element
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.ledger.call_filter import CallFilter
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.ledger.tidying import BATCH
from tests.unit.goondan_tasks.ledger.calls import a_call, an_event, claimed


@pytest.fixture
def client(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(client_connection, "connect", lambda *_, **__: redis)
    return Client(Settings(lease_seconds=60, queue_timeout_seconds=60))


def queue(ledger: Ledger, *calls: ToolCall) -> list[str]:
    """Submit calls with the messages that producers push."""
    submissions = []
    for call in calls:
        wire, call_id = serializer.encode(call.to_wire()), identity_of(call)
        message = queue_element(call_id, call, wire)
        submissions.append(Submission(call_id, call, wire, digest_of(call), message))
    ledger.submit_all(submissions, "p1")
    return [one.id for one in submissions]


def calls(count: int, **fields: object) -> list[ToolCall]:
    first = len(str(fields)) * 100_000
    return [a_call(tool_call_id=f"call_{first + number}", **fields) for number in range(count)]


def length(redis: Redis, agent: str = "coder") -> int:
    return int(redis.llen(queue_of(a_call().model_copy(update={"agent_name": agent}))))


def test_cancelling_all_queued_calls_leaves_no_message(client: Client, ledger: Ledger, redis: Redis) -> None:
    ids = queue(ledger, *calls(BATCH + 101))
    steps: list[int] = []

    cancelled = client.cancel_many(client.cancel_all("coder", dry_run=True), watch=steps.append)

    assert sorted(cancelled) == sorted(ids)
    assert steps == sorted(steps)
    assert steps[-1] == len(ids)
    assert length(redis) == 0
    assert {record.state for record in ledger.records(ids) if record} == {"error"}
    assert client.call_counts().settled == {("coder", "E_TOOL_CANCELLED"): len(ids)}


def test_messages_of_unselected_calls_keep_their_order(client: Client, ledger: Ledger, redis: Redis) -> None:
    ids = [
        queue(ledger, *calls(1, instance_key=f"{'odd' if number % 2 else 'even'}", turn_id=f"t{number}"))[0]
        for number in range(20)
    ]

    cancelled = client.cancel_all("coder", instance="odd")

    assert sorted(cancelled) == sorted(ids[1::2])
    left = redis.lrange("agent.coder", 0, -1)
    assert [serializer.decode(message)["headers"]["id"] for message in reversed(left)] == ids[::2]


def test_selection_uses_agent_tool_status_and_age(client: Client, ledger: Ledger) -> None:
    [bash] = queue(ledger, a_call())
    [other] = queue(ledger, a_call(tool_call_id="call_2").model_copy(update={"tool_name": "image__draw"}))
    [foreign] = queue(ledger, a_call(tool_call_id="call_3").model_copy(update={"agent_name": "planner"}))
    running = a_call(tool_call_id="call_4")
    queue(ledger, running)
    claimed(ledger, running)

    def selected(agent: str | None = None, **wanted: Unpack[CallFilter]) -> set[str]:
        return set(client.cancel_all(agent, dry_run=True, **wanted))

    assert selected("planner") == {foreign}
    assert selected(tool="image__*") == {other}
    assert selected("coder", status="queued") == {bash, other}
    assert selected(status="running") == {identity_of(running)}
    assert selected(older_than=3600) == set()
    assert selected(newer_than=3600) == selected() == {bash, other, foreign, identity_of(running)}


def test_running_calls_are_marked_ended_calls_skipped(client: Client, ledger: Ledger) -> None:
    running, ended = a_call(), a_call(tool_call_id="call_2")
    queue(ledger, running, ended)
    claimed(ledger, running)
    claim = claimed(ledger, ended)
    ledger.finish(claim, claim.run.ok({}, 1_790_000_000_000.0)).run(ledger.redis)
    ids = [identity_of(ended), identity_of(running), "unknown"]

    assert client.cancel_all(dry_run=True) == [identity_of(running)]
    assert client.cancel_many(ids) == [identity_of(running)]
    assert client.record(identity_of(running)).is_cancelled
    assert client.cancel_all() == []


def test_cancelled_events_leave_their_mailboxes(client: Client, ledger: Ledger, redis: Redis) -> None:
    events = [an_event(number, awaited=False) for number in (1, 2, 3)]
    for event in events:
        ledger.submit_all([client.submitter.prepare_event(event)], "p1")

    assert len(client.cancel_all("coder")) == 3
    assert redis.zcard(ledger.keys.mailboxes("coder")) == 0
    assert redis.llen(queue_of(events[0])) == 0


def test_damaged_record_stops_no_other_cancel(client: Client, ledger: Ledger, redis: Redis) -> None:
    damaged, healthy = queue(ledger, *calls(2))
    redis.delete(ledger.keys.call(damaged))
    redis.set(ledger.keys.call(damaged), "another program's")

    assert client.cancel_all("coder") == [healthy]
    assert client.cancel_many([damaged, healthy]) == [healthy]


def test_unknown_agent_and_unknown_filter_are_refused(client: Client) -> None:
    with pytest.raises(AgentNotFoundError):
        client.cancel_all("nobody")
    with pytest.raises(TypeError, match="colour"):
        client.cancel_all(colour="red")  # type: ignore[call-arg]
