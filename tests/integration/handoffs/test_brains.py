"""Agents without an entry: producers receive their events, and answer."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client import Client
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.status import UnfetchedMail, read_unfetched_mail
from goondan_tasks.contract.errors import (
    AgentHasEntryError,
    AgentNotFoundError,
    CallClosedError,
    HandoffError,
    HandoffTimeoutError,
    ToolError,
)
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.words import TELL, ask
from tests.waiting import wait_until

PATIENCE = 60


def next_event(client: Client, instance: str, agent: str = "mute") -> ReceivedEvent:
    received = client.receive(agent, instance, timeout=PATIENCE)
    assert received is not None
    return received


def asked(client: Client, instance: str, input: Any = None, agent: str = "mute") -> str:
    return client.request(agent, input, instance_key=instance, is_async=True, timeout=PATIENCE).correlation_id


def test_event_is_received_and_answered(client: Client) -> None:
    request = client.request(
        "mute", {"n": None}, instance_key="a", is_async=True, auth={"t": 1}, event_id="e1"
    )
    received = next_event(client, "a")
    assert (received.agent, received.instance_key, received.input) == ("mute", "a", {"n": None})
    assert (received.auth, received.turn_id, received.attempt) == ({"t": 1}, "turn-e1", 1)
    assert received.id == received.correlation_id == request.correlation_id
    assert client.pending(received.id).status() == "running"
    client.reply(received, {"answer": None})
    assert client.pending(received.id).result(PATIENCE).output == {"answer": None}


def test_unfetched_events_are_reported_until_they_are_received(
    client: Client, handoffs_stack: LocalStack
) -> None:
    asked(client, "unfetched")

    with connect(handoffs_stack.redis_url, name="test") as redis:

        def unfetched() -> list[UnfetchedMail]:
            return read_unfetched_mail(redis, Keys("goondan"), ["mute", "ann"], older_than_seconds=0)

        wait_until(lambda: [(one.agent, one.mailboxes) for one in unfetched()] == [("mute", 1)], PATIENCE)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.receive, "mute", "elsewhere", timeout=2 * PATIENCE)
            wait_until(lambda: unfetched() == [], PATIENCE)
            client.send("mute", None, instance_key="elsewhere")
            received = waiting.result()
        assert received is not None
        client.reply(received)
        assert len(unfetched()) == 1
        client.reply(next_event(client, "unfetched"), None)
        assert unfetched() == []


@pytest.mark.parametrize("asker", ["ann", "bob"])
def test_agent_asks_agent_that_producer_drives(client: Client, asker: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(
            client.request, asker, ask("mute", 5), instance_key=f"b-{asker}", timeout=PATIENCE
        )
        received = next_event(client, f"b-{asker}")
        assert received.event.source.name == asker
        client.reply(received, received.input + 1)
        assert answer.result(PATIENCE).response["answer"]["response"] == 6


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("no idea", "E_AGENT_FAILED", "no idea"),
        (ValueError("bad"), "E_AGENT_FAILED", "bad"),
        (ToolError("own", code="E_OWN"), "E_OWN", "own"),
    ],
)
def test_producer_may_fail_event(client: Client, error: Any, code: str, message: str) -> None:
    call_id = asked(client, f"c-{code}-{message}")
    client.fail(next_event(client, f"c-{code}-{message}"), error)
    result = client.pending(call_id).result(PATIENCE)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (code, message)


def test_instance_hands_out_events_singly_in_order(client: Client) -> None:
    for number in range(5):
        client.send("mute", number, instance_key="d")
    for number in range(5):
        received = next_event(client, "d")
        assert received.input == number
        assert client.receive("mute", "d", timeout=0) is None
        client.reply(received)
    assert client.receive("mute", "d", timeout=0) is None


def test_producers_side_by_side_receive_different_events(client: Client, handoffs_stack: LocalStack) -> None:
    for number in range(40):
        client.send("mute", number, instance_key=f"e-{number % 8}")
    seen: list[tuple[str, Any]] = []
    busy: set[str] = set()
    lock = threading.Lock()

    def work(own: Client) -> None:
        while len(seen) < 40:
            received = own.receive("mute", timeout=0.2)
            if received is None:
                continue
            with lock:
                assert received.instance_key not in busy
                busy.add(received.instance_key)
                seen.append((received.instance_key, received.input))
            with lock:
                busy.discard(received.instance_key)
            own.reply(received)

    with Client(client.settings) as other, ThreadPoolExecutor(6) as threads:
        workers = [threads.submit(work, own) for own in (client, other) for _ in range(3)]
        for worker in workers:
            worker.result(PATIENCE)
    assert sorted(number for _, number in seen) == list(range(40))
    for instance in range(8):
        mine = [number for key, number in seen if key == f"e-{instance}"]
        assert mine == sorted(mine)


def test_no_instance_starves_behind_busy_instance(client: Client) -> None:
    client.send("muse", "busy", instance_key="f-busy")
    client.send("muse", "patient", instance_key="f-patient")
    served = []
    for _ in range(3):
        received = client.receive("muse", timeout=PATIENCE)
        assert received is not None
        served.append(received.instance_key)
        if received.instance_key == "f-busy":
            client.send("muse", "busy", instance_key="f-busy")
        client.reply(received)
    assert "f-patient" in served
    while (rest := client.receive("muse", timeout=0)) is not None:
        client.reply(rest)


def test_waiting_receive_is_woken_by_event(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goondan_tasks.client.event_receiver.LOOK_SECONDS", 2 * PATIENCE)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.receive, "mute", "g", 2 * PATIENCE)
        wait_until(lambda: client._redis.pubsub_numsub("goondan:mail:mute")[0][1])
        client.send("mute", 1, instance_key="g")
        received = waiting.result(PATIENCE)
    assert received is not None
    client.reply(received)


def test_receive_without_event_returns_at_its_timeout(client: Client) -> None:
    asked_at = time.monotonic()
    assert client.receive("mute", "nobody", timeout=0.3) is None
    assert time.monotonic() - asked_at >= 0.3


def test_handed_out_event_is_kept_beyond_lease(client: Client) -> None:
    call_id = asked(client, "h")
    received = next_event(client, "h")
    first = client._redis.hget(f"goondan:call:{call_id}", "token")
    end = time.monotonic() + 1.5 * client.settings.lease_seconds
    wait_until(lambda: client.receive("mute", "h", timeout=0.5) is not None or time.monotonic() > end, 30)
    assert client._redis.hget(f"goondan:call:{call_id}", "token") == first
    client.reply(received, "kept")
    assert client.pending(call_id).result(PATIENCE).output == "kept"


def test_answer_to_cancelled_request_is_refused(client: Client) -> None:
    call_id = asked(client, "i")
    received = next_event(client, "i")
    client.cancel(call_id)
    with pytest.raises(CallClosedError):
        client.reply(received, 1)
    with pytest.raises(CallClosedError):
        client.fail(received, "again")
    asked(client, "i")
    client.reply(next_event(client, "i"))


def test_second_answer_is_refused(client: Client) -> None:
    asked(client, "j")
    received = next_event(client, "j")
    client.reply(received, 1)
    with pytest.raises(CallClosedError):
        client.reply(received, 2)


def test_refused_non_json_answer_may_be_corrected(client: Client) -> None:
    call_id = asked(client, "k")
    received = next_event(client, "k")
    with pytest.raises(ToolError) as raised:
        client.reply(received, object())
    assert raised.value.code == "E_TOOL_BAD_OUTPUT"
    client.reply(received, "json")
    assert client.pending(call_id).result(PATIENCE).output == "json"


def test_request_times_out_without_answer(client: Client) -> None:
    with pytest.raises(HandoffTimeoutError, match="mute@l"):
        client.request("mute", 1, instance_key="l", timeout=0.2)
    assert client.receive("mute", "l", timeout=0) is None


def test_entry_agents_events_are_not_handed_out(client: Client) -> None:
    with pytest.raises(AgentHasEntryError, match="'ann'"):
        client.receive("ann", timeout=1)
    with pytest.raises(AgentNotFoundError):
        client.receive("nobody", timeout=1)


def test_asynchronous_answer_reaches_producer_that_asked(client: Client, handoffs_stack: LocalStack) -> None:
    """The brain is not a worker: what it asks for is answered to whoever reads the request's result."""
    answer = client.request("bob", TELL, instance_key="m", is_async=True, timeout=PATIENCE)
    assert client.pending(answer.correlation_id).result(PATIENCE).output["agent"] == "bob"


def test_many_producer_threads_may_begin_at_once(handoffs_stack: LocalStack) -> None:
    for number in range(16):
        handoffs_stack.client.send("mute", number, instance_key=f"n-{number}")
    with Client(handoffs_stack.client.settings) as fresh, ThreadPoolExecutor(16) as threads:
        received = list(threads.map(lambda number: next_event(fresh, f"n-{number}"), range(16)))
        for one in received:
            fresh.reply(one)
    assert sorted(one.input for one in received) == list(range(16))


def test_closed_client_holds_no_event(handoffs_stack: LocalStack) -> None:
    call_id = asked(handoffs_stack.client, "o")
    with Client(handoffs_stack.client.settings) as other:
        next_event(other, "o")
    result = handoffs_stack.client.pending(call_id).result(4 * handoffs_stack.client.settings.lease_seconds)
    assert result.error is not None
    assert result.error.code == "E_AGENT_OUTCOME_UNKNOWN"


def test_non_event_message_does_not_reach_producer(client: Client) -> None:
    sent = client.send("mute", 1, instance_key="p")
    [record] = [one for one in client.calls("mute") if one.call.tool_call_id == sent.event_id]
    wire = record.call.model_copy(
        update={"args": {**record.call.args, "payload": {"type": 5}}}
    ).model_dump_json(by_alias=True, exclude_none=True)
    client._redis.hset(f"goondan:call:{record.id}", "call", wire)
    assert client.receive("mute", "p", timeout=0.5) is None
    result = client.pending(record.id).result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_INVALID_ARGS"


def test_handoff_error_has_code_and_suggestion(client: Client) -> None:
    call_id = asked(client, "q")
    client.fail(next_event(client, "q"), HandoffError("no"))
    result = client.pending(call_id).result(PATIENCE)
    assert result.error is not None
    assert (result.error.code, bool(result.error.suggestion)) == ("E_AGENT_FAILED", True)
