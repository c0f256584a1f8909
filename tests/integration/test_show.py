"""The story of calls on real workers: each state, without a producer that waits."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config.keys import Keys
from goondan_tasks.client import PendingCall
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

BUNDLE = Path(__file__).parents[1] / "bundles" / "shown-calls"
PATIENCE = 60
LEASES = {"lease_seconds": 2}


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Workers with short leases, and an agent that has none."""
    with LocalStack(BUNDLE, agents=["teller"], environment={"GOONDAN_LEASE_SECONDS": "2"}) as running:
        yield running


@pytest.fixture
def env(stack: LocalStack) -> dict[str, str]:
    return environment(redis_url=stack.redis_url, **LEASES)


def submit(stack: LocalStack, tool: str, args: dict[str, Any] | None = None, **fields: Any) -> PendingCall:
    agent = fields.pop("agent", "teller")
    return stack.client.submit(agent, tool, args or {}, **fields)


def story(call: PendingCall | str, env: dict[str, str]) -> dict[str, Any]:
    shown = goondan("show", call if isinstance(call, str) else call.id, "--json", env=env)
    assert shown.exit_code == 0
    document: dict[str, Any] = shown.document
    return document


def test_calls_that_have_ended_tell_how(stack: LocalStack, env: dict[str, str]) -> None:
    good = submit(stack, "tale__tell", {"apiKey": "sk-1234567890", "text": "once"})
    bad = submit(stack, "tale__fail")
    assert (good.result(PATIENCE).status, bad.result(PATIENCE).status) == ("ok", "error")

    ok, failed = story(good, env), story(bad, env)
    text = goondan("show", bad.id, env=env).stdout

    [worker] = stack.client.workers()
    assert (ok["state"], ok["worker"], ok["attempts"][0]["ended"]) == ("ok", worker.name, "ok")
    assert "sk-1234567890" not in ok["args"]["text"]
    assert ok["output"]["text"] == '"once"'
    assert (failed["state"], failed["error"]["code"]) == ("error", "E_TALE")
    assert failed["error"]["suggestion"] == "Tell another one."
    assert f"Traceback: none is kept with the call. See the log of {worker.name}." in text


@pytest.mark.parametrize("tool", ["tale__stumble", "tale__trip", "tale__fall"])
def test_traceback_of_handler_is_kept_with_its_call(
    stack: LocalStack, env: dict[str, str], tool: str
) -> None:
    call = submit(stack, tool)
    assert call.result(PATIENCE).status == "error"

    wait_until(lambda: stack.client.describe(call.id).traceback is not None, PATIENCE)
    shown = goondan("show", call.id, env=env).stdout

    assert "Traceback (most recent call last):" in shown
    assert "in stumble" in shown
    assert "ZeroDivisionError: division by zero" in shown
    assert "traceback" not in call.result(0).to_wire()["error"]


def test_calls_that_wait_tell_for_what(stack: LocalStack, env: dict[str, str]) -> None:
    queued = submit(stack, "tale__tell", agent="absent")
    cancelled = submit(stack, "tale__tell", agent="absent")
    cancelled.cancel()
    held = submit(stack, "tale__guarded")
    assert held.result(PATIENCE).meta.awaits == "approval"

    assert story(queued, env)["summary"].startswith("queued for ")
    assert story(cancelled, env)["summary"].startswith("cancelled ")
    waits = story(held, env)
    assert waits["summary"].startswith("waiting for an approval for ")
    assert (waits["state"], waits["awaits"]) == ("pending", "approval")


def test_calls_of_running_and_of_killed_worker(
    stack: LocalStack, env: dict[str, str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first, second = (submit(stack, "tale__alone", {"until": str(gate)}) for _ in range(2))
    wait_until(
        lambda: stack.client.record(first.id).has_started and stack.client.record(second.id).waiting_for
    )
    [worker] = stack.client.workers()

    running, waiting = story(first, env), story(second, env)
    assert running["summary"].startswith(f"running on {worker.name} for ")
    assert (waiting["state"], waiting["limits"], waiting["ahead"]) == (
        "waiting",
        ["concurrency:tale__alone"],
        0,
    )

    [process] = stack.workers
    process.send_signal(signal.SIGKILL)
    process.wait()
    stack.client._redis.expire(Keys().worker(worker.row), 1)  # after 20 s, otherwise
    wait_until(lambda: not stack.client.workers())  # its heartbeat runs out; nobody sweeps meanwhile

    lost = story(first, env)
    assert lost["summary"].startswith(f"lost with {worker.name} ")
    assert (lost["state"], lost["attempts"][0]["ended"], lost["runsLeft"]) == ("lost", "its worker died", 0)
    tree = goondan("trace", first.id, env=env).stdout
    assert "lost" in tree
    assert f"lost with {worker.name} " in tree
    queues = goondan("queues", "--agent", "teller", env=env)
    assert f"teller: 1 call lost with {worker.name} " in queues.stderr
    checks = {check["name"]: check for check in goondan("doctor", "--json", env=env).document["checks"]}
    assert checks["calls of teller"]["message"].startswith(f"1 call lost with {worker.name} ")
    [row] = goondan("calls", "--status", "lost", "--json", env=env).document
    assert (row["id"], row["status"], row["lostAt"]) == (first.id, "running", lost["lostAt"])
    assert goondan("result", first.id, env=env).stdout.startswith(f"lost with {worker.name} ")
    assert story(first, env)["lostAt"] == lost["lostAt"]  # though that was a sweep, which has spared it

    gate.touch()
    stack.start_worker()
    assert first.result(PATIENCE).status == "error"
    settled = story(first, env)
    assert (settled["error"]["code"], settled["worker"]) == ("E_TOOL_OUTCOME_UNKNOWN", worker.name)
    assert settled["attempts"][0]["ended"] == "its worker died"
    assert second.result(PATIENCE).status == "ok"


def test_story_shows_dead_letter_as_dead(stack: LocalStack, env: dict[str, str]) -> None:
    deadly = submit(stack, "tale__deadly")
    [process] = [worker for worker in stack.workers if worker.poll() is None]
    process.wait(PATIENCE)
    stack.start_worker()
    assert deadly.result(PATIENCE).status == "error"

    dead = story(deadly, env)

    assert (dead["state"], dead["error"]["code"]) == ("dead", "E_TOOL_POISONED")
    assert dead["summary"].startswith("became a dead letter with E_TOOL_POISONED ")
    assert dead["settledBy"] != dead["worker"]
