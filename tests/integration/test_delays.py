"""Calls that are scheduled for later, with real workers."""

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from broker_config.connections import redis_time
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import CallClosedError
from goondan_tasks.contract.messages import epoch_milliseconds
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.integration.results import error_of

PATIENCE = 60


def now_of(stack: LocalStack) -> int:
    with Redis.from_url(stack.redis_url) as redis:
        return round(redis_time(redis))


def test_call_with_delay_begins_at_its_time(calls_stack: LocalStack, client: Client) -> None:
    begin = now_of(calls_stack)
    call = client.submit("smith", "echo__args", {"n": 1}, delay=1.5)

    status = call.status()
    result = call.result(PATIENCE)

    assert status == "scheduled"
    assert result.output == {"n": 1}
    assert epoch_milliseconds(result.meta.started_at or "") >= begin + 1_500
    assert epoch_milliseconds(result.meta.queued_at or "") >= begin + 1_500


def test_time_counts_as_datetime_and_as_text(client: Client) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1)
    calls = [
        client.submit("smith", "echo__args", not_before=soon),
        *client.submit_many(
            [{"agentName": "smith", "toolName": "echo__args", "notBefore": soon.isoformat()}]
        ),
    ]

    started = [epoch_milliseconds(one.result(PATIENCE).meta.started_at or "") for one in calls]

    assert min(started) >= int(soon.timestamp() * 1000)


def test_wrong_time_is_result_and_not_exception(client: Client) -> None:
    code, message = error_of(client.call("smith", "echo__args", delay=-3, timeout=PATIENCE))

    assert code == "E_TOOL_INVALID_ARGS"
    assert "delay: must be a number of seconds from 0" in message


def test_scheduled_call_is_listed_run_now_or_cancelled(client: Client) -> None:
    now, never = (client.submit("smith", "echo__args", delay=3_600) for _ in range(2))
    [queue] = [row for row in client.queues() if row.agent == "smith"]
    listed = {one.id for one in client.calls("smith", status="scheduled")}

    client.run_now(now.id)
    never.cancel()

    assert queue.scheduled == 2
    assert listed == {now.id, never.id}
    assert now.result(PATIENCE).status == "ok"
    assert error_of(never.result(PATIENCE))[0] == "E_TOOL_CANCELLED"
    with pytest.raises(CallClosedError):
        client.run_now(never.id)


def test_scheduled_call_survives_kill_of_all_workers(smithy: Crew, tmp_path: Path) -> None:
    client, args = smithy.stack.client, {"place": str(tmp_path), "times": 0}
    workers = smithy.muster(2)
    begin = now_of(smithy.stack)
    call = client.submit("smith", "flaky__any", args, delay=3, tool_call_id="once")
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.wait(PATIENCE)
    again = client.submit("smith", "flaky__any", args, tool_call_id="once")
    smithy.muster(1)

    result = again.result(PATIENCE)

    assert again.id == call.id  # submitted again, it keeps its time
    assert result.output == 1
    assert epoch_milliseconds(result.meta.started_at or "") >= begin + 3_000
    assert call.result(PATIENCE).meta.id == call.id
    assert (tmp_path / "runs").read_text() == "run\n"
