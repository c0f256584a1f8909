"""Real workers on a private Redis: how they start, work and end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.testing import LocalStack
from tests.processes import runs, with_environment
from tests.waiting import wait_until

BUNDLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
TASK = {"task": "Write it. Review it."}

HOLDER = """
import signal, sys
from goondan_tasks.errors import AgentUnavailableError
from goondan_tasks.testing import LocalStack

with LocalStack(sys.argv[1], agents=["coder"]) as stack:
    stack.client.submit("coder", "bash__exec", {"command": "touch started; sleep 300 & setsid sleep 300"})
    print(stack.redis.process.pid, stack.workers[0].pid, stack.state_root, flush=True)
    signal.pause()
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Two workers, started in an environment that has a broker of its own."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FROM_OUTSIDE", "handed_on")
        environment.setenv("GOONDAN_REDIS_URL", "redis://127.0.0.1:1/0")
        environment.setenv("GOONDAN_BROKER_URL", "redis://127.0.0.1:1/0")
        with LocalStack(BUNDLE, workers=2, environment={"ADDED": "too"}) as running:
            yield running


def test_stack_worker_answers_instead_of_callers_own_broker(
    stack: LocalStack,
) -> None:
    result = stack.client.call("planner", "plan__outline", TASK, timeout=30)

    workers = {worker.name: worker for worker in stack.client.workers()}
    assert result.status == "ok"
    assert result.meta.worker in workers
    assert {process.pid for process in stack.workers} == {worker.pid for worker in workers.values()}


def test_environment_reaches_workers(stack: LocalStack) -> None:
    workers = {worker.pid for worker in stack.workers}
    assert workers <= set(with_environment("FROM_OUTSIDE=handed_on"))
    assert workers <= set(with_environment("ADDED=too"))


def test_only_prefixed_variables_become_client_settings() -> None:
    environment = {"NAMESPACE": "a tool's", "LOG_LEVEL": "loud", "GOONDAN_LEASE_SECONDS": "7"}
    with LocalStack(BUNDLE, workers=0, environment=environment) as stack:
        assert stack.client.settings.namespace == "goondan"
        assert stack.client.settings.lease_seconds == 7


def test_apart_each_agent_has_worker_of_its_own() -> None:
    with LocalStack(BUNDLE, agents=["planner", "coder"], apart=True) as stack:
        served = [worker.agents for worker in stack.client.workers()]

    assert sorted(served) == [("coder",), ("planner",)]


def test_later_worker_serves_given_agents_until_stopped(stack: LocalStack) -> None:
    first, second = stack.workers
    process = stack.start_worker(agents=["planner"], concurrency=3)
    [worker] = [worker for worker in stack.client.workers() if worker.pid == process.pid]
    assert (worker.agents, worker.concurrency) == (("planner",), 3)
    assert stack.workers == [first, second, process]

    stack.stop_worker(process)

    assert process.returncode == 0
    assert stack.workers == [first, second]
    assert stack.client.call("planner", "plan__outline", TASK, timeout=30).status == "ok"


def test_calls_wait_until_worker_is_started() -> None:
    with LocalStack(BUNDLE, agents=["planner"], workers=0) as stack:
        call = stack.client.submit("planner", "plan__outline", TASK)
        assert stack.workers == []
        assert call.status() == "queued"

        stack.start_worker()

        assert call.result(timeout=30).status == "ok"


def test_packages_of_caller_do_not_hide_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workers.py").write_text("raise RuntimeError('not ours')", encoding="ascii")
    monkeypatch.chdir(tmp_path)

    with LocalStack(BUNDLE, agents=["planner"]) as stack:
        assert stack.client.call("planner", "plan__outline", TASK, timeout=30).status == "ok"


def test_workdirs_are_private_and_go_with_stack() -> None:
    with LocalStack(BUNDLE, agents=["coder"]) as stack:
        stack.client.call("coder", "file-system__write", {"path": "a.txt", "content": "a"}, timeout=30)
        [written] = stack.state_root.rglob("a.txt")

    assert not written.exists()
    assert not stack.state_root.exists()


def test_given_state_root_is_used_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path))
    with LocalStack(BUNDLE, agents=["coder"]) as stack:
        stack.client.call("coder", "file-system__write", {"path": "a.txt", "content": "a"}, timeout=30)

    assert [path.read_text(encoding="utf-8") for path in tmp_path.rglob("a.txt")] == ["a"]


def test_unstartable_worker_is_reported_with_log_leaving_nothing_behind() -> None:
    stack = LocalStack(BUNDLE, agents=["nobody"])

    with pytest.raises(AgentUnavailableError, match="nobody") as caught:
        stack.__enter__()

    assert caught.value.code == "E_AGENT_UNAVAILABLE"
    assert not any(runs(process.pid) for process in [*stack.workers, stack.redis.process])


def test_everything_ends_when_block_raises() -> None:
    with pytest.raises(ZeroDivisionError), LocalStack(BUNDLE, agents=["planner"]) as stack:
        raise ZeroDivisionError

    assert not any(runs(process.pid) for process in [*stack.workers, stack.redis.process])


def test_running_call_does_not_delay_stack_end(tmp_path: Path) -> None:
    marker = f"LEFT_OVER={tmp_path}"
    with LocalStack(BUNDLE, agents=["coder"], environment={"LEFT_OVER": str(tmp_path)}) as stack:
        stack.client.submit("coder", "bash__exec", {"command": "touch started; sleep 300 & setsid sleep 300"})
        wait_until(lambda: list(stack.state_root.rglob("started")))

    wait_until(lambda: not with_environment(marker))


def test_killed_process_takes_workers_redis_and_tool_processes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT_OVER", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, BUNDLE], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    redis_pid, worker_pid, state_root = holder.stdout.readline().split()
    wait_until(lambda: list(Path(state_root).rglob("started")))

    holder.send_signal(signal.SIGKILL)
    holder.communicate()

    wait_until(lambda: not runs(int(redis_pid)) and not runs(int(worker_pid)))
    wait_until(lambda: not with_environment(f"LEFT_OVER={tmp_path}"))
    wait_until(lambda: not list(tmp_path.glob("goondan-*")))
