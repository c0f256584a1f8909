"""goondan flower as a process, asked over HTTP as a browser does."""

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.flower_process import document, flower, page
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
    """Run Flower."""
    with flower(stack.redis_url) as address:
        yield address


def test_broker_page_shows_agent_queues_with_lengths(stack: LocalStack, url: str) -> None:
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


def test_call_is_shown_with_tool_arguments_result_and_worker(stack: LocalStack, url: str) -> None:
    wait_until(lambda: "coder-" in page(f"{url}/workers"), PATIENCE)  # from then on it gets the events
    call = stack.client.submit("coder", "bash__exec", {"command": "echo seen"})
    result = call.result(PATIENCE)

    wait_until(lambda: document(f"{url}/api/tasks").get(call.id, {}).get("state") == "SUCCESS", PATIENCE)
    task = document(f"{url}/api/tasks")[call.id]

    assert (task["name"], task["worker"]) == ("coder.bash__exec", result.meta.worker)
    assert "echo seen" in task["kwargs"]
    assert task["result"].startswith("ok ")


@pytest.mark.parametrize("path", ["/tasks", "/api/tasks", "/metrics", "/static/js/flower.js"])
def test_page_under_rebound_name_reads_nothing(url: str, path: str) -> None:
    rebound = urllib.request.Request(url + path, headers={"Host": "evil.example:5555"})  # noqa: S310 - ours
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(rebound, timeout=30)  # noqa: S310
