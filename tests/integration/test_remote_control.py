"""Celery's remote control of our workers: what it says it has done, it has."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.celery_apps import close_connections
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.crew import Crew
from tests.integration.diary import BUNDLE, Diary
from tests.waiting import wait_until

PATIENCE = 30


class Control:
    """Broadcasts commands to the only worker of a stack, and returns what it answers."""

    def __init__(self, redis_url: str) -> None:
        self.celery = Celery(broker=redis_url, backend=redis_url, set_as_current=False)
        # a worker may take calls before it listens
        wait_until(lambda: self.celery.control.ping(timeout=1, limit=1), PATIENCE)

    def close(self) -> None:
        close_connections(self.celery)
        self.celery.close()

    def mailbox(self) -> Any:
        """Return a mailbox with a place for answers, for who does not wait for one."""
        control: Any = self.celery.control
        mailbox = control.mailbox(self.celery.connection_for_write())
        mailbox.reply_queue(mailbox.connection.default_channel).declare()
        return mailbox

    def __call__(self, command: str, **arguments: Any) -> Any:
        replies = self.celery.control.broadcast(
            command, arguments=arguments, reply=True, timeout=PATIENCE, limit=1
        )
        [[answer]] = [reply.values() for reply in replies or []]
        return answer


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with LocalStack(CALLS_BUNDLE, agents=["smith"], workers=0) as stack:
        yield Crew(stack)


@pytest.fixture
def stack(crew: Crew) -> LocalStack:
    crew.muster(concurrency=2)
    return crew.stack


@pytest.fixture
def control(stack: LocalStack) -> Iterator[Control]:
    control = Control(stack.redis_url)
    yield control
    control.close()


def obstacle(stack: LocalStack, place: Path) -> PendingCall:
    """Submit a call that lasts until its guest comes, and wait until it has begun."""
    place.mkdir()
    call = stack.client.submit("smith", "patient__stubborn", {"place": str(place)})
    wait_until(lambda: (place / "began").exists(), PATIENCE)
    return call


def test_worker_that_cannot_answer_still_drains(stack: LocalStack, control: Control) -> None:
    [worker] = stack.workers
    since = len(stack.log(worker))
    mailbox = control.mailbox()
    with mailbox.connection, Redis.from_url(stack.redis_url) as redis:
        redis.config_set("maxmemory", 1)
        try:
            mailbox._publish("ping", {}, reply_ticket="ticket")
            wait_until(lambda: "does not take the answer" in stack.log(worker)[since:], PATIENCE)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
        finally:
            redis.config_set("maxmemory", 0)


def test_shutdown_drains_worker_whose_calls_end(stack: LocalStack, control: Control, tmp_path: Path) -> None:
    [worker] = stack.workers
    lasting = obstacle(stack, tmp_path / "a")
    assert [control("shutdown") for _ in range(2)] == [{"ok": "draining"}] * 2
    wait_until(lambda: not any(one.agents for one in stack.client.workers()), PATIENCE)
    assert worker.poll() is None
    (tmp_path / "a" / "guest").touch()
    assert lasting.result(PATIENCE).status == "ok"
    assert worker.wait(PATIENCE) == 0


@pytest.mark.parametrize("command", ["revoke", "terminate"])
def test_revoke_or_terminate_cancels_running_call(
    stack: LocalStack, control: Control, tmp_path: Path, command: str
) -> None:
    asked = {"task_id": None, "signal": "SIGTERM"}
    place = tmp_path / "a"
    place.mkdir()
    call = stack.client.submit("smith", "patient__waits", {"place": str(place)})
    wait_until(lambda: (place / "began").exists(), PATIENCE)
    assert control(command, **{**asked, "task_id": [call.id]}) == {"ok": f"{call.id}: cancelled"}
    result = call.result(PATIENCE)
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"
    assert control(command, **{**asked, "task_id": call.id}) == {"ok": f"{call.id}: cancelled"}


def test_revoke_after_result_leaves_result_unchanged(stack: LocalStack, control: Control) -> None:
    call = stack.client.submit("smith", "echo__args", {})
    assert call.result(PATIENCE).status == "ok"
    assert control("revoke", task_id=call.id) == {"ok": f"{call.id}: has ended"}
    assert stack.client.pending(call.id).result(PATIENCE).status == "ok"


def test_unknown_call_is_cancelled_when_it_arrives(stack: LocalStack, control: Control) -> None:
    assert "not known yet" in control("revoke", task_id=["call-of-celery"])["ok"]
    with Redis.from_url(stack.redis_url) as redis:
        assert redis.get("celery-task-meta-call-of-celery") is None
    call = {"agentName": "smith", "toolName": "echo__args", "args": {}}
    sent = control.celery.send_task(
        "goondan.tool_call", kwargs={"call": call}, queue="agent.smith", task_id="call-of-celery"
    )
    assert sent.get(timeout=PATIENCE)["error"]["code"] == "E_TOOL_CANCELLED"


def test_worker_gets_more_places_and_fewer(stack: LocalStack, control: Control, tmp_path: Path) -> None:
    first, second = (obstacle(stack, tmp_path / name) for name in "ab")
    assert control("pool_grow", n=1) == {"ok": "pool will grow"}
    third = obstacle(stack, tmp_path / "c")
    wait_until(lambda: [one.concurrency for one in stack.client.workers()] == [3], PATIENCE)
    assert control("pool_shrink", n=2) == {"ok": "pool will shrink"}
    for name in "abc":
        (tmp_path / name / "guest").touch()
    assert [call.result(PATIENCE).status for call in (first, second, third)] == ["ok"] * 3
    assert "1 to 10,000 slots" in control("pool_shrink", n=1)["error"]
    assert "1 to 10,000 slots" in control("pool_grow", n=10**9)["error"]
    assert control("stats")["prefetch_count"] == 1
    assert control("pool_grow", n=1) == {"ok": "pool will grow"}


@pytest.mark.parametrize(
    ("command", "arguments", "instead"),
    [
        ("rate_limit", {"task_name": "goondan.tool_call", "rate_limit": "1/h"}, "rateLimit"),
        ("time_limit", {"task_name": "goondan.tool_call", "soft": 1, "hard": 2}, "timeoutSeconds"),
        ("revoke_by_stamped_headers", {"headers": {"a": "b"}}, "goondan cancel"),
        ("autoscale", {"max": 5, "min": 1}, "not enabled"),
        ("pool_restart", {}, "not enabled"),
        ("add_consumer", {"queue": "agent.nobody"}, "smith"),
        ("add_consumer", {"queue": "celery"}, "smith"),
    ],
)
def test_control_command_without_effect_names_alternative(
    control: Control, command: str, arguments: dict[str, Any], instead: str
) -> None:
    assert instead in control(command, **arguments)["error"]


@pytest.mark.parametrize(
    "command", ["ping", "active", "reserved", "scheduled", "revoked", "registered", "stats", "active_queues"]
)
def test_worker_answers_monitors_commands(control: Control, command: str) -> None:
    answer = control(command)
    assert answer is not None
    assert not (isinstance(answer, dict) and "error" in answer)


def test_worker_taking_another_agents_calls_keeps_their_limits(tmp_path: Path) -> None:
    with LocalStack(BUNDLE, agents=["clerk"]) as stack:
        diary, control = Diary(tmp_path), Control(stack.redis_url)
        names = [f"n{number}" for number in range(5)]
        calls = [diary.call("desk__solo", name, agent="porter", gate=str(diary.gate)) for name in names]
        assert control("add_consumer", queue="agent.porter") == {"ok": "add consumer agent.porter"}
        submitted = stack.client.submit_many(calls)
        wait_until(lambda: any(one.agents == ("clerk", "porter") for one in stack.client.workers()), PATIENCE)
        diary.gate.touch()
        assert {call.result(PATIENCE).status for call in submitted} == {"ok"}
        assert diary.most_at_once() == 1
        assert control("cancel_consumer", queue="agent.porter")["ok"]
        wait_until(lambda: any(one.agents == ("clerk",) for one in stack.client.workers()), PATIENCE)
        control.close()
        stack.workers[0].send_signal(signal.SIGTERM)
        assert stack.workers[0].wait(PATIENCE) == 0
