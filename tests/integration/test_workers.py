"""Worker processes: how they share work, stop, die and come back."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentUnavailableError, CallNotFoundError
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.crew import Crew
from tests.integration.meetings import marks, meet
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def stack(smithy: Crew) -> LocalStack:
    return smithy.stack


def test_two_workers_share_calls_with_joining_third(smithy: Crew, stack: LocalStack, tmp_path: Path) -> None:
    workers = smithy.muster(2, concurrency=2)
    # no call of a meeting ends before all of it run: so many workers with two places each
    shares = [share_of_a_meeting(stack.client, tmp_path / "two", 4)]
    workers.append(smithy.add(concurrency=2))
    shares += [share_of_a_meeting(stack.client, tmp_path / f"three-{number}", 6) for number in range(5)]
    names = {worker.name for worker in stack.client.workers()}
    assert len(names) == 3
    assert list(shares[0].values()) == [2, 2]
    assert shares[1:] == [dict.fromkeys(names, 2)] * 5
    assert all(worker.poll() is None for worker in workers)


def share_of_a_meeting(client: Client, place: Path, guests: int) -> Counter[str | None]:
    """Return how many of a meeting's calls each worker has run."""
    results = [call.result(PATIENCE) for call in meet(client, place, guests, count=guests)]
    assert [result.output["met"] for result in results] == [True] * guests
    return Counter(result.meta.worker for result in results)


def test_worker_takes_no_calls_beyond_its_slots(smithy: Crew, stack: LocalStack, tmp_path: Path) -> None:
    smithy.muster(concurrency=2)
    calls = meet(stack.client, tmp_path / "a", 3, count=3)
    wait_until(lambda: marks(tmp_path / "a") == 2)
    smithy.add(concurrency=2)
    assert all(call.result(PATIENCE).output["met"] for call in calls)


def test_sigterm_finishes_running_calls_leaving_queued_to_others(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster(concurrency=2)
    running = meet(stack.client, tmp_path / "a", 3, count=2)
    wait_until(lambda: marks(tmp_path / "a") == 2)
    waiting = stack.client.submit("smith", "echo__args")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "worker.draining" in stack.log(worker))
    (tmp_path / "a" / "the-third-guest").touch()
    assert all(call.result(PATIENCE).output["met"] for call in running)
    assert worker.wait(PATIENCE) == 0
    assert waiting.status() == "queued"
    smithy.add()
    assert waiting.result(PATIENCE).status == "ok"


def test_calls_outliving_grace_period_are_settled_honestly(
    smithy: Crew, stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smithy.muster(0)
    with monkeypatch.context() as hasty:
        hasty.setitem(stack._environment, "GOONDAN_GRACE_SECONDS", "1")
        worker = smithy.add()
    once = meet(stack.client, tmp_path / "once", 2, tool="meeting__async")[0]
    again = meet(stack.client, tmp_path / "again", 2, tool="meeting__sync")[0]
    wait_until(lambda: marks(tmp_path / "once") == 1 == marks(tmp_path / "again"))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    unknown = once.result(PATIENCE)
    assert unknown.error is not None
    assert unknown.error.code == "E_TOOL_OUTCOME_UNKNOWN"
    smithy.add()
    assert again.result(PATIENCE).output["met"]
    assert marks(tmp_path / "once") == 1


def test_handler_that_outlives_its_lease_runs_once(smithy: Crew, stack: LocalStack, tmp_path: Path) -> None:
    smithy.muster(2)
    call = stack.client.submit("smith", "bash__exec", {"command": f"echo ran >> {tmp_path}/ran; sleep 5"})
    result = call.result(PATIENCE)
    assert (result.status, result.meta.attempt) == ("ok", 1)
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_worker_with_another_state_root_is_refused(
    smithy: Crew, stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smithy.muster()
    monkeypatch.setitem(stack._environment, "GOONDAN_STATE_ROOT", str(tmp_path / "elsewhere"))
    with pytest.raises(AgentUnavailableError, match="state root"):
        stack.start_worker()


def test_without_any_worker_waiting_caller_gets_expiry(tmp_path: Path) -> None:
    environment = {"GOONDAN_QUEUE_TIMEOUT_SECONDS": "1"}
    with LocalStack(CALLS_BUNDLE, workers=0, environment=environment) as stack:
        result = stack.client.call("smith", "echo__args", timeout=PATIENCE)
        assert result.error is not None
        assert result.error.code == "E_TOOL_EXPIRED"
        stack.start_worker()
        in_time = {"agentName": "smith", "toolName": "echo__args", "deadline": "2099-01-01T00:00:00Z"}
        assert stack.client.submit_many([in_time])[0].result(PATIENCE).status == "ok"


def test_timed_out_sync_handler_is_answered_freeing_slot(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster(concurrency=1)
    args = {"place": str(tmp_path), "guests": 2}
    stuck = stack.client.submit("smith", "meeting__sync", args, timeout_seconds=0.3)
    late = stuck.result(PATIENCE)
    assert late.error is not None
    assert (late.error.code, late.error.message) == (
        "E_TOOL_TIMEOUT",
        "The tool did not finish within 0.3 s.",
    )
    assert late.meta.duration_ms is not None
    assert late.meta.duration_ms >= 300
    assert stack.client.call("smith", "echo__args", {"n": 1}, timeout=20).output == {"n": 1}
    assert marks(tmp_path) == 1
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert stack.client.pending(stuck.id).result(PATIENCE) == late


def test_worker_with_unusable_state_root_says_so(stack: LocalStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stack._environment, "GOONDAN_STATE_ROOT", "/proc/nope")
    with pytest.raises(AgentUnavailableError) as raised:
        stack.start_worker()
    assert "ended with 3" in raised.value.message
    assert "The state root /proc/nope cannot be used" in raised.value.message
    assert "Traceback" not in raised.value.message


def test_queue_status_counts_waiting_and_running_calls(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster(concurrency=1)
    calls = meet(stack.client, tmp_path / "a", 2, tool="meeting__async", count=3)
    wait_until(lambda: marks(tmp_path / "a") == 1)

    def smiths_queue() -> dict[str, Any]:
        return next(row.to_wire() for row in stack.client.queues() if row.agent == "smith")

    wait_until(lambda: smiths_queue()["running"] == 1)
    row = smiths_queue()
    (tmp_path / "a" / "guest").touch()
    assert row.pop("oldestSeconds") >= 0
    assert row == {
        "lost": 0,
        "lostWith": (),
        "paused": (),
        "agent": "smith",
        "queue": "agent.smith",
        "backlog": 2,
        "running": 1,
        "waitingForLimit": 0,
        "pending": 0,
        "scheduled": 0,
        "workers": 1,
        "events": 0,
        "deadLetters": 0,
        "lateAnswers": 0,
        "mailboxes": 0,
    }
    assert all(call.result(PATIENCE).status == "ok" for call in calls)
    stack.stop_worker(worker)
    assert json.dumps(smiths_queue()["workers"]) == "0"


@pytest.mark.parametrize(
    ("options", "variables", "advice"),
    [
        (("worker", "-P", "threads"), {}, "isolation: process"),
        (("worker", "-P", "processes"), {}, "isolation: process"),
        (("worker", "-P", "solo"), {}, "isolation: process"),
        (("-b", "amqp://u:hush@127.0.0.1:1", "worker"), {}, "Leave out -b/--broker"),
        (("worker",), {"CELERY_BROKER_URL": "redis://:hush@127.0.0.1:1/5"}, "unset CELERY_BROKER_URL"),
    ],
    ids=["threads", "processes", "solo", "broker", "variable"],
)
def test_unsupported_celery_pool_or_broker_gets_advice(
    stack: LocalStack, options: tuple[str, ...], variables: dict[str, str], advice: str
) -> None:
    environment = {
        **os.environ,
        **variables,
        "GOONDAN_REDIS_URL": stack.redis_url,
        "GOONDAN_BUNDLE": str(CALLS_BUNDLE),
        "GOONDAN_STATE_ROOT": str(stack.state_root),
    }
    command = [sys.executable, "-m", "celery", "-A", "goondan_tasks", *options]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 3
    assert "worker.refused" in done.stderr
    assert advice in done.stderr
    assert "Traceback" not in done.stderr
    assert "hush" not in done.stderr


def is_forgotten(client: Client, call_id: str) -> bool:
    try:
        client.pending(call_id).status()
    except CallNotFoundError:
        return True
    return False


def test_ended_call_is_not_run_after_its_record_expires(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    environment = {"GOONDAN_RESULT_TTL_SECONDS": "1", "GOONDAN_QUEUE_TIMEOUT_SECONDS": "1"}
    with LocalStack(CALLS_BUNDLE, workers=0, environment=environment) as stack:
        client = stack.client
        commands = [f"echo {name} >> {ran}" for name in ("cancelled", "expired", "in time")]
        cancelled, expired = [
            client.submit("smith", "bash__exec", {"command": command}) for command in commands[:2]
        ]
        cancelled.cancel()
        errors = [call.result(PATIENCE).error for call in (cancelled, expired)]
        assert [error and error.code for error in errors] == ["E_TOOL_CANCELLED", "E_TOOL_EXPIRED"]
        for call in (cancelled, expired):
            wait_until(partial(is_forgotten, client, call.id))

        stack.start_worker()

        assert client.call("smith", "bash__exec", {"command": commands[2]}, timeout=PATIENCE).status == "ok"
        assert client.queues()[0].backlog == 0
        assert ran.read_text() == "in time\n"
