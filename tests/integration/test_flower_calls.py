"""What Flower shows of calls, however they end: real workers, some of which are killed, and a real Flower."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.integration.flower_process import document, flower, page
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

PATIENCE = 120
Worker = subprocess.Popen[bytes]

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: coder}
spec: {tools: [Tool/scene], entry: ./scene.py}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {name: scene}
spec:
  entry: ./scene.py
  exports:
    - {name: add, description: Add., parameters: {type: object}}
    - {name: fail, description: Fail., parameters: {type: object}}
    - {name: stay, description: Last., parameters: {type: object}}
    - {name: die, description: Kill the worker., parameters: {type: object}, idempotent: true, maxAttempts: 1}
    - {name: later, description: End later., parameters: {type: object}}
    - {name: buy, description: Buy., parameters: {type: object}, requiresApproval: true}
    - name: flaky
      description: Fail, then do not.
      parameters: {type: object}
      idempotent: true
      retry: {max: 2, backoffSeconds: 0.01}
"""

TOOLS = """\
import asyncio
import os
import signal


def add(ctx, input):
    return input["a"] + input["b"]


def fail(ctx, input):
    raise ValueError("no such file: notes.md")


async def stay(ctx, input):
    await asyncio.sleep(600)


def die(ctx, input):
    os.kill(os.getpid(), signal.SIGKILL)


def later(ctx, input):
    return ctx.pending("job-17")


def buy(ctx, input):
    return "bought"


def flaky(ctx, input):
    mark = ctx.workdir / "tried"
    if not mark.exists():
        mark.touch()
        raise ValueError("not yet")
    return "now"


async def handle(ctx, event):
    return {"seen": event.input}


handlers = {f.__name__: f for f in (add, fail, stay, die, later, buy, flaky)}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    bundle = tmp_path_factory.mktemp("scene")
    (bundle / "goondan.yaml").write_text(BUNDLE)
    (bundle / "scene.py").write_text(TOOLS)
    environment = {"GOONDAN_LEASE_SECONDS": "2", "GOONDAN_GRACE_SECONDS": "1"}
    with LocalStack(bundle, workers=0, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def url(stack: LocalStack) -> Iterator[str]:
    """Run Flower for all tests."""
    with flower(stack.redis_url) as address:
        yield address


@pytest.fixture
def worker(stack: LocalStack, url: str) -> Iterator[Worker]:
    """Run a worker that Flower shows as the only living one."""
    wait_until(lambda: not alive(url), PATIENCE, show=lambda: workers_page(url))
    worker = stack.start_worker()
    wait_until(lambda: alive(url), PATIENCE)
    yield worker
    for left in stack.workers:
        stack.stop_worker(left)


def workers_page(url: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = document(f"{url}/workers?json=1")["data"]
    return rows


def alive(url: str) -> list[str]:
    return [row["hostname"] for row in workers_page(url) if row["status"]]


def active(url: str) -> int:
    """Return how many calls all workers run, the dead ones too, as Flower shows it."""
    return sum(row["active"] for row in workers_page(url))


def submit(stack: LocalStack, tool: str, **args: Any) -> PendingCall:
    return stack.client.submit("coder", f"scene__{tool}", args)


def tasks(url: str) -> dict[str, Any]:
    found: dict[str, Any] = document(f"{url}/api/tasks")
    return found


def requests(url: str) -> list[dict[str, Any]]:
    return [task for task in tasks(url).values() if task["name"] == "coder.goondan__delegate"]


def shows(url: str, calls: dict[PendingCall, str]) -> bool:
    found = tasks(url)
    return all(found.get(call.id, {}).get("state") == state for call, state in calls.items())


def started(url: str, *calls: PendingCall) -> None:
    """Wait until Flower shows that the calls run."""
    wait_until(lambda: shows(url, dict.fromkeys(calls, "STARTED")), PATIENCE)


def kill(worker: Worker) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait(PATIENCE)


def end_eight_ways(stack: LocalStack, url: str, worker: Worker) -> dict[str, PendingCall]:
    """Make a call end in each of the ways; two workers die."""
    calls = {"dead letter": submit(stack, "die", number=4)}
    worker.wait(PATIENCE)
    worker = stack.start_worker()
    assert calls["dead letter"].result(PATIENCE).error.code == "E_TOOL_POISONED"  # type: ignore[union-attr]

    calls |= {"lost": submit(stack, "stay", number=5), "lost too": submit(stack, "stay", number=6)}
    started(url, calls["lost"], calls["lost too"])
    kill(worker)
    stack.start_worker()
    for name in ("lost", "lost too"):
        assert calls[name].result(PATIENCE).error.code == "E_TOOL_OUTCOME_UNKNOWN"  # type: ignore[union-attr]

    calls |= {"ok": submit(stack, "add", a=1, b=2), "error": submit(stack, "fail", api_key="hush-hush")}
    calls |= {"pending": submit(stack, "later", number=7), "unapproved": submit(stack, "buy", number=8)}
    calls |= {"cancelled": submit(stack, "stay", number=3)}
    started(url, calls["cancelled"])
    calls["cancelled"].cancel()
    for call in calls.values():
        call.result(PATIENCE)
    return calls


def test_flower_shows_eight_endings_and_idle_dead_worker(stack: LocalStack, url: str, worker: Worker) -> None:
    known = {row["hostname"] for row in workers_page(url)} - set(alive(url))

    def rows() -> list[dict[str, Any]]:
        return [row for row in workers_page(url) if row["hostname"] not in known]

    calls = end_eight_ways(stack, url, worker)

    states = {
        calls["ok"]: "SUCCESS",
        calls["error"]: "FAILURE",
        calls["cancelled"]: "REVOKED",
        calls["dead letter"]: "FAILURE",
        calls["lost"]: "FAILURE",
        calls["lost too"]: "FAILURE",
        calls["pending"]: "STARTED",
        calls["unapproved"]: "RECEIVED",
    }
    wait_until(lambda: shows(url, states), PATIENCE, show=lambda: tasks(url))
    shown = {name: tasks(url)[call.id] for name, call in calls.items()}
    wait_until(lambda: len(alive(url)) == 1, PATIENCE, show=lambda: workers_page(url))
    [living] = [row for row in rows() if row["status"]]
    # Flower counts what runs from heartbeats; the living worker's next one comes after its call has ended
    wait_until(lambda: [row["active"] for row in rows()] == [0, 0, 0], PATIENCE, show=rows)
    # a producer that waits settles lost calls too, and is no worker
    failed = Counter(task["worker"] for task in shown.values() if task["state"] == "FAILURE")
    assert all(row.get("task-failed", 0) == failed[row["hostname"]] for row in rows())
    assert sum(row.get("task-succeeded", 0) for row in rows()) == 1
    assert set(document(f"{url}/api/workers?refresh=1")) == {living["hostname"]}

    assert {task["name"] for task in shown.values()} == {
        f"coder.scene__{tool}" for tool in ("add", "fail", "stay", "die", "later", "buy")
    }
    for name, call in calls.items():
        assert shown[name]["worker"] == call.result(PATIENCE).meta.worker
    assert shown["ok"]["result"] == "ok 3"
    assert shown["pending"]["result"] == 'pending: waits for its completion, "job-17"'
    assert shown["unapproved"]["result"] == "pending: waits for its approval"
    assert shown["lost"]["exception"].startswith("E_TOOL_OUTCOME_UNKNOWN: ")
    assert shown["dead letter"]["exception"].startswith("E_TOOL_POISONED: ")
    error = shown["error"]
    assert error["exception"] == error["result"] == "E_TOOL: no such file: notes.md"
    assert error["traceback"].splitlines()[2].strip() == 'raise ValueError("no such file: notes.md")'
    assert error["kwargs"] == 'default {"api_key":"***"}'
    assert shown["cancelled"]["result"].startswith("E_TOOL_CANCELLED: ")

    env = environment(redis_url=stack.redis_url)
    told = goondan("result", shown["lost"]["uuid"], "--json", env=env)
    assert json.loads(told.stdout)["error"]["code"] == "E_TOOL_OUTCOME_UNKNOWN"


@pytest.mark.usefixtures("worker")
def test_retried_call_and_request_succeed_in_flower(stack: LocalStack, url: str) -> None:
    again = submit(stack, "flaky")
    answer = stack.client.request("coder", "Write the notes.", timeout=PATIENCE)

    assert again.result(PATIENCE).output == "now"
    assert answer.response == {"seen": "Write the notes."}
    wait_until(lambda: shows(url, {again: "SUCCESS"}), PATIENCE)
    wait_until(lambda: [task["state"] for task in requests(url)] == ["SUCCESS"], PATIENCE)
    assert tasks(url)[again.id]["retried"] is not None
    [request] = requests(url)
    assert request["kwargs"].startswith('"Write the notes." ')
    assert "SUCCESS" in page(f"{url}/task/{again.id}")


def test_calls_without_worker_also_end_in_flower(stack: LocalStack, url: str, worker: Worker) -> None:
    kill(worker)
    waiting = submit(stack, "add", a=1, b=2)
    waiting.cancel()
    assert waiting.result(PATIENCE).status == "error"

    wait_until(lambda: shows(url, {waiting: "REVOKED"}), PATIENCE, show=lambda: tasks(url))
    wait_until(lambda: not alive(url), PATIENCE, show=lambda: workers_page(url))
    assert "producer" not in {row["hostname"] for row in workers_page(url)}


def test_stopping_worker_reports_unfinished_call_and_shows_none_active(
    stack: LocalStack, url: str, worker: Worker
) -> None:
    call = submit(stack, "stay")
    started(url, call)
    wait_until(lambda: active(url) == 1, PATIENCE)
    stack.stop_worker(worker)

    wait_until(lambda: shows(url, {call: "FAILURE"}), PATIENCE)
    assert tasks(url)[call.id]["exception"].startswith("E_TOOL_OUTCOME_UNKNOWN: ")
    wait_until(lambda: not alive(url), PATIENCE)
    assert active(url) == 0
