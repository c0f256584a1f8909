"""A bundle changes, and its workers are started anew: agents get an entry, and agents are gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.connections import connect
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PATIENCE = 60

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Package
metadata: {name: changed}
spec: {}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {name: default}
spec: {entryAgent: Agent/fox, agents: [Agent/fox, Agent/owl]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: fox}
spec: {}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: owl}
spec: {}
"""

ENTRY = """
async def handle(ctx, event):
    return event.input + 1
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "entry.py").write_text(ENTRY)
    (bundle / "goondan.yaml").write_text(BUNDLE)
    with LocalStack(bundle, workers=0) as stack:
        yield stack


def give_entry(stack: LocalStack) -> None:
    """Let fox handle its events from the next worker on."""
    yaml = BUNDLE.replace("name: fox}\nspec: {}", "name: fox}\nspec: {entry: ./entry.py}")
    (Path(stack.bundle) / "goondan.yaml").write_text(yaml)


def ask(stack: LocalStack, count: int, instances: int) -> list[str]:
    return [
        stack.client.request("fox", n, instance_key=f"i{n % instances}", is_async=True).correlation_id
        for n in range(count)
    ]


def answers(stack: LocalStack, ids: list[str]) -> list[object]:
    return [stack.client.pending(call_id).result(PATIENCE).output for call_id in ids]


def wait_until_parked(stack: LocalStack, call_id: str) -> None:
    with connect(stack.redis_url, name="test") as redis:
        wait_until(lambda: redis.hexists(f"goondan:call:{call_id}", "parked"), PATIENCE)


def test_new_entry_handles_events_awaiting_producer(
    stack: LocalStack,
) -> None:
    old = stack.start_worker(["fox"])
    ids = ask(stack, 4, instances=2)
    for call_id in ids:
        wait_until_parked(stack, call_id)
    stack.stop_worker(old)
    give_entry(stack)
    stack.start_worker(["fox"])

    assert answers(stack, ids) == [1, 2, 3, 4]


def test_events_parked_by_older_worker_are_handled_later(stack: LocalStack) -> None:
    old = stack.start_worker(["fox"])
    give_entry(stack)
    stack.start_worker(["fox"])
    ids = ask(stack, 20, instances=20)
    with connect(stack.redis_url, name="test") as redis:
        wait_until(lambda: redis.llen("agent.fox.events") == 0, PATIENCE)
    stack.stop_worker(old)

    assert answers(stack, ids) == list(range(1, 21))


def test_removed_agent_is_not_found_by_next_asker(stack: LocalStack) -> None:
    stack.stop_worker(stack.start_worker(["owl"]))
    yaml = BUNDLE.replace(", Agent/owl]", "]").rpartition("---")[0]
    (Path(stack.bundle) / "goondan.yaml").write_text(yaml)
    stack.start_worker(["fox"])

    with Client.connect(stack.redis_url) as client, pytest.raises(AgentNotFoundError, match="'owl'"):
        client.request("owl", 1, timeout=PATIENCE)
