"""What monitors are told of calls, as Celery's own State understands it."""

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from celery.events.state import State
from fakeredis import FakeRedis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

from broker_config.settings import Settings
from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.errors import GoondanError, ToolCancelledError, ToolError, ToolPoisonedError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, iso_time, wall_clock
from goondan_tasks.contract.names import DELEGATE_RESULT_TOOL, DELEGATE_TOOL
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.fleet.agent_registry import AgentRegistry, WorkerRecord
from goondan_tasks.fleet.monitors import MOST_EVENTS, Monitors, ended, shown, shown_arguments, task_name
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from tests.unit.goondan_tasks.ledger.calls import AGAIN, ONCE, claimed, submit
from tests.waiting import wait_until

CALL = new_call("coder", "bash__exec", {"command": "ls"}, {"tool_call_id": "call_1"})


class Watched:
    """A Redis, and the messages that are published in it."""

    def __init__(self) -> None:
        self.redis = FakeRedis()
        redis: Any = self.redis
        self._listener = redis.pubsub()
        self._listener.psubscribe("*")
        self._listener.get_message(timeout=5)

    def messages(self) -> list[list[dict[str, Any]]]:
        """Return the events of each message that has come since."""
        found = []
        while (message := self._listener.get_message(timeout=0.05)) is not None:
            if message["channel"] == b"/0.celeryev/task.multi":
                found.append(json.loads(base64.b64decode(json.loads(message["data"])["body"])))
        return found

    def events(self) -> list[dict[str, Any]]:
        return [event for events in self.messages() for event in events]

    def state(self) -> Any:
        """Return what a monitor knows that has seen w1 run two calls, and the events that have come since."""
        state: Any = State()
        heartbeat = {"type": "worker-heartbeat", "hostname": "w1", "timestamp": time.time(), "active": 2}
        for event in [heartbeat, *self.events()]:
            state.event({"local_received": event["timestamp"], "clock": 1, **event})
        return state


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.redis.close()


def run_of(call: ToolCall = CALL) -> Run:
    return Run("id-1", call, "w1", 1, wall_clock(), wall_clock)


def failed(error: GoondanError, started_at: float | None = None) -> ToolCallResult:
    return run_of().failed(describe(error, help_url="https://help/"), started_at)


def test_name_has_agent_and_tool_and_no_space() -> None:
    assert task_name("coder", "bash__exec") == "coder.bash__exec"
    assert [task_name("coder", tool) for tool in ("", "(no call)")] == ["coder.(no-tool)", "coder.(no-call)"]


def test_failure_event_has_code_message_and_help() -> None:
    event = ended(failed(ToolPoisonedError()))
    assert event["type"] == "task-failed"
    assert event["exception"].startswith("E_TOOL_POISONED: ")
    assert event["traceback"].splitlines()[-1] == "https://help/E_TOOL_POISONED"


@pytest.mark.parametrize(("started_at", "is_terminated"), [(None, False), (1.0, True)])
def test_cancelled_call_is_revoked(started_at: float | None, *, is_terminated: bool) -> None:
    event = ended(failed(ToolCancelledError(), started_at))
    assert (event["type"], event["terminated"]) == ("task-revoked", is_terminated)


def test_secrets_are_hidden_by_name_value_and_fragment() -> None:
    KNOWN_SECRETS.add("xyzzy-plugh-1234")
    long = {"text": "x" * 185 + "xyzzy-plugh-1234"}
    assert shown({"user": "u", "deep": [{"password": "p4ss"}]}) == '{"user":"u","deep":[{"password":"***"}]}'
    assert shown({"text": "xyzzy-plugh-1234"}) == '{"text":"***"}'
    assert "xyzzy" not in shown(long)
    assert "plugh" not in ended(failed(ToolError("no xyzzy-plugh-1234")))["exception"]


def test_value_that_is_not_json_can_be_shown() -> None:
    assert shown({"n": float("nan")}) == "(not JSON)"
    assert len(shown("ü" * 500)) < 200


def test_event_begins_with_input_and_answer_with_response() -> None:
    asked = {"from": "planner", "payload": {"id": "e1", "type": "agent.request", "input": "Add it."}}
    assert shown_arguments(DELEGATE_TOOL, "coder", "demo", asked) == (
        '"Add it." planner -> coder@demo {"id":"e1","type":"agent.request"}'
    )
    answer = {"from": "coder", "payload": {"status": "ok", "response": [1]}}
    assert shown_arguments(DELEGATE_RESULT_TOOL, "planner", "demo", answer).startswith("[1] coder -> ")
    assert shown_arguments(DELEGATE_TOOL, "coder", "demo", {"payload": 7}) == 'demo {"payload":7}'


def test_events_of_batch_share_one_kombu_message(watched: Watched) -> None:
    monitors = Monitors(watched.redis, Settings())
    monitors.add_end(CALL, run_of().ok(3, None))
    monitors.add_end(CALL, failed(ToolError("no")))
    monitors.flush()
    monitors.flush()
    [events] = watched.messages()
    assert [event["type"] for event in events] == ["task-succeeded", "task-failed"]


def test_events_wait_ordered_and_bounded_during_outage(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitors = Monitors(watched.redis, Settings())
    for number in range(MOST_EVENTS + 3):
        monitors.add("w1", {"type": "task-started", "uuid": str(number)})

    def refuse(*_: object) -> None:
        raise RedisConnectionError

    with monkeypatch.context() as outage:
        outage.setattr(watched.redis, "publish", refuse)
        monitors.flush()
    monitors.flush()
    numbers = [int(event["uuid"]) for event in watched.events()]
    assert numbers == list(range(3, MOST_EVENTS + 3))


def test_missing_right_to_publish_is_told_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monitors = Monitors(watched.redis, Settings())

    def refuse(*_: object) -> None:
        raise NoPermissionError("No permissions to access a channel")

    with monkeypatch.context() as outage:
        outage.setattr(watched.redis, "publish", refuse)
        assert [monitors.publish(b"[]") for _ in range(3)] == [False] * 3
    assert ["&/*" in message for message in caplog.messages] == [True]
    assert monitors.publish(b"[]")


def test_monitors_receive_nothing_if_events_are_off(watched: Watched) -> None:
    monitors = Monitors(watched.redis, Settings(events="off"))
    monitors.add_end(CALL, failed(ToolError("no")))
    monitors.tell_end(CALL, failed(ToolError("no")), received=0, lost_by="w0")
    monitors.flush()
    assert watched.messages() == []


def lost(watched: Watched, terms: ClaimTerms) -> tuple[str, Reaper]:
    """Return the id of a call whose worker, w1, has died after its start, and what has swept it."""
    ledger = Ledger(watched.redis, Settings(lease_seconds=0.02))
    ledger.sweep("w2").run(watched.redis)
    call_id = submit(ledger, CALL)
    claim = claimed(ledger, CALL, terms)
    assert ledger.start([claim.id_and_token]).run(watched.redis) == [1]
    reaper = Reaper(ledger, "")
    wait_until(lambda: reaper.sweep("w2"))
    return call_id, reaper


def test_lost_call_fails_at_settler_with_worker_offline(watched: Watched) -> None:
    call_id, _ = lost(watched, ONCE)
    state = watched.state()
    task = state.tasks[call_id]
    assert (task.state, task.name, task.worker.hostname) == ("FAILURE", "coder.bash__exec", "w2")
    assert task.exception.startswith("E_TOOL_OUTCOME_UNKNOWN: ")
    assert "Worker w1 had the call" in task.traceback
    assert task.received is not None
    assert (state.workers["w1"].alive, state.workers["w1"].active) == (False, 0)


def test_rerun_lost_call_shows_retry_then_end(watched: Watched) -> None:
    call_id, reaper = lost(watched, AGAIN)
    events = watched.events()
    assert [event["type"] for event in events] == ["task-retried", "worker-offline", "worker-offline"]
    assert "Worker w1 died" in events[0]["exception"]
    reaper.cancel(call_id, "producer")
    assert watched.state().tasks[call_id].state == "REVOKED"


def test_live_worker_is_not_reported_offline(watched: Watched) -> None:
    ledger = Ledger(watched.redis, Settings())
    alive = WorkerRecord(
        name="w2", pid=1, host="h", agents=("coder",), concurrency=1, root_id="r", started_at=iso_time(0)
    )
    AgentRegistry(watched.redis, ledger.keys).publish_worker(alive, 60)
    call_id = submit(ledger, CALL)
    Reaper(ledger, "").cancel(call_id, "w2")
    assert [event["type"] for event in watched.events()] == ["task-revoked"]


def test_rejected_result_is_not_sent_to_monitors(watched: Watched) -> None:
    ledger = Ledger(watched.redis, Settings())
    submit(ledger, CALL)
    claim = claimed(ledger, CALL)
    reaper = Reaper(ledger, "")
    assert not reaper.finish(replace(claim, token="another"), reaper.failure(claim, ToolError("no")))
    assert watched.messages() == []
