"""goondan flower as a process, asked over HTTP as a browser does."""

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
PATIENCE = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a worker for the coder; planner and reviewer have none."""
    with LocalStack(EXAMPLE, agents=["coder"]) as running:
        yield running


@pytest.fixture(scope="module")
def url(stack: LocalStack) -> Iterator[str]:
    """Run Flower without the bundle; it ends on SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {**environment(redis_url=stack.redis_url), "FLOWER_UNAUTHENTICATED_API": "true"}
    process = start("flower", "--port", str(port), env=env)
    try:
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/healthcheck"), PATIENCE)
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        process.kill()


def answers(url: str) -> bool:
    """Say whether a page is there."""
    try:
        return bool(page(url))
    except OSError:
        return False


def page(url: str) -> str:
    """Fetch a page."""
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own address
        text: str = response.read().decode()
        return text


def document(url: str) -> Any:
    """Fetch a JSON document."""
    return json.loads(page(url))


def test_the_broker_page_shows_every_agents_queue_with_its_length(stack: LocalStack, url: str) -> None:
    stack.client.submit("reviewer", "review__style", {})
    wait_until(lambda: "coder-" in page(f"{url}/workers"), PATIENCE)  # a worker must not hide the idle queues

    cells = re.findall(r"<td[^>]*>\s*([^<]*?)\s*</td>", page(f"{url}/broker"))

    lengths = {name: cells[place + 1] for place, name in enumerate(cells) if name.startswith("agent.")}
    assert lengths == {
        "agent.coder": "0",
        "agent.coder.events": "0",
        "agent.planner": "0",
        "agent.planner.events": "0",
        "agent.reviewer": "1",
        "agent.reviewer.events": "0",
    }


def test_a_call_is_shown_with_tool_arguments_result_and_worker(stack: LocalStack, url: str) -> None:
    wait_until(lambda: "coder-" in page(f"{url}/workers"), PATIENCE)  # from then on it gets the events
    call = stack.client.submit("coder", "bash__exec", {"command": "echo seen"})
    result = call.result(PATIENCE)

    wait_until(lambda: document(f"{url}/api/tasks").get(call.id, {}).get("state") == "SUCCESS", PATIENCE)
    task = document(f"{url}/api/tasks")[call.id]

    assert (task["name"], task["worker"]) == ("bash__exec", result.meta.worker)
    assert "echo seen" in task["kwargs"]
    assert task["result"].startswith("ok ")
