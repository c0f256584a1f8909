"""Draining by request: of an agent's workers, and of one worker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"
PATIENCE = 60


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    # a short lease makes workers look often
    with LocalStack(CALLS_BUNDLE, workers=0, environment={"GOONDAN_LEASE_SECONDS": "3"}) as stack:
        yield stack


def served(client: Client) -> list[tuple[str, ...]]:
    return [worker.agents for worker in client.workers()]


def test_draining_worker_finishes_call_and_leaves_rest_to_others(stack: LocalStack, tmp_path: Path) -> None:
    worker = stack.start_worker(["smith"], concurrency=1)
    meeting = {"place": str(tmp_path), "guests": 2}
    running = stack.client.submit("smith", "meeting__sync", meeting)
    wait_until(lambda: running.status() == "running", PATIENCE)
    queued = stack.client.submit("smith", "echo__args", {"n": 1})

    asked = stack.client.shutdown(agent="smith", reason="new version")
    wait_until(lambda: served(stack.client) in ([()], []), PATIENCE)  # it takes no more, and is there
    (tmp_path / "guest").touch()

    assert [one.pid for one in asked] == [worker.pid]
    assert running.result(PATIENCE).status == "ok"
    assert worker.wait(PATIENCE) == 0
    assert queued.status() == "queued"
    later = stack.start_worker(["smith"])
    assert queued.result(PATIENCE).output == {"n": 1}
    assert later.poll() is None


def test_worker_leaves_agents_singly_and_ends_with_last(stack: LocalStack) -> None:
    worker = stack.start_worker(["smith", "apprentice"])

    stack.client.shutdown(agent="smith")
    wait_until(lambda: served(stack.client) == [("apprentice",)], PATIENCE)
    waiting = stack.client.submit("smith", "echo__args")
    assert stack.client.call("apprentice", "echo__args", {"n": 2}, timeout=PATIENCE).output == {"n": 2}
    assert waiting.status() == "queued"
    stack.client.shutdown(agent="apprentice")

    assert worker.wait(PATIENCE) == 0


def test_shutdown_by_name_stops_only_that_worker(stack: LocalStack) -> None:
    first, second = stack.start_worker(["smith"]), stack.start_worker(["smith"])
    [name] = [one.name for one in stack.client.workers() if one.pid == first.pid]
    env = environment(redis_url=stack.redis_url)

    done = goondan("shutdown", "--worker", name, "--reason", "this machine goes", "--json", env=env)

    assert done.document == {"asked": [name]}
    assert first.wait(PATIENCE) == 0
    assert "this machine goes" in stack.log(first)
    assert second.poll() is None
    assert stack.client.call("smith", "echo__args", {"n": 3}, timeout=PATIENCE).output == {"n": 3}


@pytest.mark.requirement("ipc.message-form")
def test_plain_celery_shutdown_message_drains_agents_workers(stack: LocalStack) -> None:
    workers = [stack.start_worker(["smith"]) for _ in range(2)]
    message = {
        "type": "shutdown",
        "from": "client",
        "to": "smith",
        "payload": {"agent": "smith", "reason": "the shop closes"},
    }

    with plain_celery(stack.redis_url) as app:
        app.send_task("goondan.event", kwargs={"message": message}, queue="agent.smith.events")

    assert [worker.wait(PATIENCE) for worker in workers] == [0, 0]
    assert all("the shop closes" in stack.log(worker) for worker in workers)


def test_shutdown_of_unknown_agent_drains_no_worker(stack: LocalStack) -> None:
    with pytest.raises(AgentNotFoundError):
        stack.client.shutdown(agent="nobody")
    with pytest.raises(ValueError, match="either"):
        stack.client.shutdown(agent="smith", worker="both")
