"""goondan worker as a process."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
PATIENCE = 60

AGENT = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: thinker }
spec: { entry: ./thinker.py }
"""


def test_started_process_is_worker_and_sigterm_exits_zero(tmp_path: Path) -> None:
    with LocalStack(EXAMPLE, workers=0) as stack:
        env = environment(redis_url=stack.redis_url, bundle=EXAMPLE, state_root=tmp_path)
        process = start("worker", "--agent", "coder", "--agent", "planner", "--json", env=env)
        assert process.stdout is not None
        wait_until(stack.client.workers, PATIENCE)
        [worker] = stack.client.workers()

        process.send_signal(signal.SIGTERM)
        written, _ = process.communicate(timeout=PATIENCE)

        assert worker.pid == process.pid
        assert worker.name == f"coder.planner-{process.pid}@{socket.gethostname()}"
        assert worker.agents == ("coder", "planner")
        assert process.returncode == 0
        assert f'"worker": "coder.planner-{process.pid}"' in written
        assert stack.client.workers() == []


@pytest.mark.parametrize(("handler", "ends"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_closed_terminal_drains_worker_unless_under_nohup(
    tmp_path: Path, handler: signal.Handlers, ends: bool
) -> None:
    with LocalStack(EXAMPLE, workers=0) as stack:
        env = environment(redis_url=stack.redis_url, bundle=EXAMPLE, state_root=tmp_path)
        before = signal.signal(signal.SIGHUP, handler)  # what is ignored stays so in a child
        try:
            process = start("worker", "--agent", "coder", env=env)
        finally:
            signal.signal(signal.SIGHUP, before)
        wait_until(stack.client.workers, PATIENCE)
        command = {"command": "touch begun; sleep 1; echo done"}
        call = stack.client.submit("coder", "bash__exec", command)
        wait_until(lambda: list(tmp_path.rglob("begun")), PATIENCE)

        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)

        assert call.result(PATIENCE).output["stdout"] == "done\n"
        if not ends:
            assert (
                stack.client.call("coder", "bash__exec", {"command": "true"}, timeout=PATIENCE).status == "ok"
            )
            process.terminate()
        _, log = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, log


def test_agents_second_workspace_is_refused_while_first_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with LocalStack(EXAMPLE, agents=["coder"]) as stack:
        [first] = stack.workers

        def workdir() -> str:
            result = stack.client.call("coder", "bash__exec", {"command": "pwd"}, timeout=PATIENCE)
            return str(result.output["stdout"])

        with monkeypatch.context() as other:
            other.setitem(stack._environment, "GOONDAN_WORKSPACE", "elsewhere")
            with pytest.raises(AgentUnavailableError) as refused:
                stack.start_worker()
            held = {workdir() for _ in range(4)}
            stack.stop_worker(first)
            second = stack.start_worker()
            moved = workdir()

        assert "ended with 3" in refused.value.message
        assert "serves agent 'coder' in workspace" in refused.value.message
        assert "would in workspace 'elsewhere'" in refused.value.message
        assert len(held) == 1
        assert "/workspaces/elsewhere/" not in held.pop()
        assert "/workspaces/elsewhere/" in moved
        assert second.poll() is None


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("x = 1\n", ":1: the file does not define 'handle'"),
        ("\n1 / 0\n", ":2: importing the file raises Zero"),
    ],
)
def test_worker_with_unusable_entry_says_why_and_exits_3(tmp_path: Path, entry: str, reason: str) -> None:
    (tmp_path / "goondan.yaml").write_text(AGENT, encoding="utf-8")
    (tmp_path / "thinker.py").write_text(entry, encoding="utf-8")

    with pytest.raises(AgentUnavailableError) as refused, LocalStack(tmp_path):
        pass

    assert "ended with 3" in refused.value.message
    assert "worker.refused" in refused.value.message
    assert f"thinker.py{reason}" in refused.value.message


def test_worker_losing_redis_at_start_reports_and_exits_5(
    tmp_path: Path,
) -> None:
    env = environment(redis_url="redis://127.0.0.1:1/0", bundle=EXAMPLE, state_root=tmp_path)
    # what `goondan worker` does, once it has found everything in order
    run = "run_worker('late@%h', ['agent.coder'], concurrency=1, log_level='info')"
    command = [sys.executable, "-c", f"from goondan_tasks.celery import run_worker; {run}"]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.returncode == 5, done.stderr
    assert "worker.refused" in done.stderr
    assert "Redis at redis://127.0.0.1:1/0 cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
