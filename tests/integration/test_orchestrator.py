"""goondan orchestrator as a process, with real workers."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.goondan_process import environment, goondan, start
from tests.processes import with_environment
from tests.waiting import wait_until

PATIENCE = 120

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: {name: say}
spec:
  entry: say.py
  exports:
    - {name: word, description: Say the word., parameters: {type: object}}
    - {name: wait, description: Wait for the gate to open., parameters: {type: object}}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: speaker}
spec: {entry: ./speaker.py, tools: [Tool/say]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: listener}
spec: {tools: [Tool/say]}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: echo}
spec: {entry: ./echo.py}
"""

TOOL = """\
import pathlib, time
GATE = pathlib.Path(__file__).with_name("gate")
def wait(ctx, input):
    with GATE.with_name("waits").open("a") as waits:
        waits.write("run\\n")
    while not GATE.exists():
        time.sleep(0.02)
    return "waited"
handlers = {"word": lambda ctx, input: "hello", "wait": wait}
"""

#: a worker's start is noted where no test and no Redis can lose it
ENTRY = """\
import os, pathlib
with pathlib.Path(__file__).with_name("starts").open("a") as starts:
    starts.write(f"{os.getpid()}\\n")
def handle(ctx, event):
    if isinstance(event.input, dict):
        return ctx.runtime.request(event.input["of"], {"input": event.input["say"]}).response
    return f"heard {event.input}"
"""


ECHO = """\
def handle(ctx, event):
    return f"echo of {event.input}"
"""


class Stage:
    """A Redis without workers, a bundle, and orchestrators."""

    def __init__(self, stack: LocalStack, bundle: Path) -> None:
        self.stack = stack
        self.bundle = bundle
        self.mark = f"MARK={bundle}"
        self.env = {
            **environment(
                redis_url=stack.redis_url,
                bundle=bundle,
                state_root=bundle.parent / "state",
                grace_seconds=60,
                lease_seconds=6,
            ),
            "MARK": str(bundle),
        }

    @property
    def client(self) -> Client:
        return self.stack.client

    @contextmanager
    def orchestrator(self, *options: str) -> Iterator["subprocess.Popen[str]"]:
        """Run an orchestrator; its workers may outlive it, so they are ended with the stage."""
        log = (self.bundle.parent / "log").open("a")
        with log, start("orchestrator", "--json", *options, env=self.env, errors=log) as process:
            try:
                yield process
            finally:
                process.kill()

    def starts(self) -> list[int]:
        """Return the process ids of the speaker's workers that were ever started."""
        notes = self.bundle / "starts"
        return [int(line) for line in notes.read_text().split()] if notes.exists() else []

    def say(self, **fields: Any) -> ToolCallResult:
        return self.client.call("speaker", "say__word", {}, timeout=PATIENCE, **fields)

    def agent(self, name: str = "speaker") -> dict[str, Any]:
        """Return how an agent stands."""
        rows = (status.to_wire() for status in self.client.agent_statuses())
        return next(row for row in rows if row["name"] == name)

    def write_entry(self, text: str) -> None:
        (self.bundle / "speaker.py").write_text(text, encoding="utf-8")

    def workers(self, agent: str = "speaker") -> list[int]:
        return [worker.pid for worker in self.client.workers() if agent in worker.agents]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    (bundle / "say.py").write_text(TOOL, encoding="utf-8")
    (bundle / "speaker.py").write_text(ENTRY, encoding="utf-8")
    (bundle / "echo.py").write_text(ECHO, encoding="utf-8")
    with LocalStack(bundle, workers=0, environment={"GOONDAN_LEASE_SECONDS": "6"}) as stack:
        stage = Stage(stack, bundle)
        try:
            yield stage
        finally:
            for pid in with_environment(stage.mark):
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, signal.SIGKILL)


def error_of(result: ToolCallResult) -> tuple[str, str]:
    assert result.error is not None, result
    return result.error.code, result.error.message


def within(seconds: float, condition: Callable[[], object]) -> None:
    wait_until(condition, seconds)


@pytest.mark.requirement("handoff.auto-spawn", "runtime.request.auto-spawn")
def test_delegation_target_agent_is_started_on_demand(stage: Stage) -> None:
    with stage.orchestrator():
        within(PATIENCE, lambda: stage.agent("echo")["orchestrated"])
        assert stage.workers("echo") == []

        answer = stage.client.request("speaker", {"of": "echo", "say": "a word"}, timeout=PATIENCE)

        assert answer.response == "echo of a word"
        assert len(stage.workers("echo")) == 1


def test_call_to_workerless_agent_starts_worker_and_is_answered(stage: Stage) -> None:
    with stage.orchestrator():
        result = stage.client.call("speaker", "say__word", {}, timeout=PATIENCE)

        assert (result.status, result.output) == ("ok", "hello")
        assert stage.workers() == stage.starts()
        assert stage.workers("listener") == []
        assert stage.agent()["state"] == "idle"
        assert stage.agent("listener") == {**stage.agent("listener"), "state": "none", "orchestrated": True}


def test_two_orchestrators_start_one_worker_for_one_request(stage: Stage) -> None:
    with stage.orchestrator(), stage.orchestrator():
        within(PATIENCE, lambda: stage.agent()["orchestrated"])

        answer = stage.client.request("speaker", "a word", timeout=PATIENCE)

        assert answer.response == "heard a word"
        assert [stage.say().output for _ in range(3)] == ["hello"] * 3
        assert len(stage.starts()) == 1


def test_worker_started_by_others_is_used_and_left_alone(stage: Stage) -> None:
    worker = stage.stack.start_worker(["speaker"])
    with stage.orchestrator("--idle-seconds", "0") as orchestrator:
        assert stage.say().output == "hello"
        within(PATIENCE, lambda: stage.agent()["orchestrated"])

        orchestrator.terminate()
        orchestrator.wait(PATIENCE)

    assert stage.starts() == [worker.pid]
    assert worker.poll() is None


def test_idle_worker_stops_and_restarts_on_demand(stage: Stage) -> None:
    with stage.orchestrator("--idle-seconds", "0.5"):
        assert stage.say().output == "hello"
        within(PATIENCE, lambda: not stage.workers())

        assert stage.say().output == "hello"

    assert len(stage.starts()) == 2


def test_worker_is_not_idle_while_call_runs(stage: Stage) -> None:
    with stage.orchestrator("--idle-seconds", "0"):
        call = stage.client.submit("speaker", "say__wait", {})
        within(PATIENCE, (stage.bundle / "waits").exists)
        within(PATIENCE, lambda: stage.agent()["state"] == "running")
        (stage.bundle / "gate").touch()

        assert call.result(PATIENCE).output == "waited"
        within(PATIENCE, lambda: not stage.workers())

    assert len(stage.starts()) == 1


def test_orderly_stop_drains_workers(stage: Stage) -> None:
    with stage.orchestrator() as orchestrator:
        call = stage.client.submit("speaker", "say__wait", {})
        within(PATIENCE, (stage.bundle / "waits").exists)

        orchestrator.terminate()
        within(PATIENCE, lambda: not stage.workers())  # it takes no more
        (stage.bundle / "gate").touch()

        assert orchestrator.wait(PATIENCE) == 0
        assert call.result(PATIENCE).output == "waited"
    within(PATIENCE, lambda: with_environment(stage.mark) == [])  # a worker's own children end after it


def test_next_orchestrator_reuses_worker_of_killed_orchestrator(
    stage: Stage,
) -> None:
    with stage.orchestrator():
        assert stage.say().output == "hello"
    with stage.orchestrator():
        within(PATIENCE, lambda: stage.agent()["orchestrated"])

        results = [stage.say() for _ in range(3)]

    assert [result.output for result in results] == ["hello"] * 3
    assert stage.workers() == stage.starts()
    assert len(stage.starts()) == 1


def test_worker_that_is_killed_is_replaced(stage: Stage) -> None:
    with stage.orchestrator():
        assert stage.say().output == "hello"
        [killed] = stage.starts()
        os.kill(killed, signal.SIGKILL)

        result = stage.client.call("speaker", "say__word", {}, timeout=PATIENCE)

    assert result.output == "hello"
    assert len(stage.starts()) == 2


def test_calls_of_killed_worker_continue_long_before_leases_end(stage: Stage) -> None:
    stage.env["GOONDAN_LEASE_SECONDS"] = "3600"
    with stage.orchestrator("--concurrency", "1"):
        assert stage.say().output == "hello"
        running = stage.client.submit("speaker", "say__wait", {})
        within(PATIENCE, (stage.bundle / "waits").exists)
        others = [stage.client.submit("speaker", "say__word", {}) for _ in range(10)]
        asked = stage.client.send("speaker", "a word")

        os.kill(stage.starts()[-1], signal.SIGKILL)

        assert error_of(running.result(PATIENCE))[0] == "E_TOOL_OUTCOME_UNKNOWN"
        assert [call.result(PATIENCE).output for call in others] == ["hello"] * 10
        within(PATIENCE, lambda: stage.client.record(asked.id).status == "done")
    assert (stage.bundle / "waits").read_text() == "run\n"


def test_agent_with_raising_file_reports_crash_loop_to_callers(stage: Stage) -> None:
    stage.write_entry(ENTRY + "1 / 0\n")
    with stage.orchestrator():
        first = error_of(stage.say())
        rows = goondan("agents", "--json", env=stage.env).document
        late = error_of(stage.say())
        within(PATIENCE, lambda: stage.agent()["backlog"] == 0)

    assert first[0] == late[0] == "E_AGENT_UNAVAILABLE"
    assert "speaker.py:8: importing the file raises ZeroDivisionError" in first[1]
    assert "the next start is in " in first[1]
    [row] = [row for row in rows if row["name"] == "speaker"]
    assert row["state"] in {"crashLoopBackOff", "starting"}
    assert len(stage.starts()) >= row["crashes"] >= 5
    assert "speaker.py:8: importing the file raises ZeroDivisionError" in row["reason"]


def test_crash_loop_fails_awaited_request_but_keeps_unawaited_event(
    stage: Stage,
) -> None:
    stage.write_entry("1 / 0\n")
    with stage.orchestrator():
        stage.client.send("speaker", "good night", instance_key="other")
        with pytest.raises(AgentUnavailableError, match="ZeroDivisionError"):
            stage.client.request("speaker", "a word", timeout=PATIENCE)

        within(PATIENCE, lambda: stage.agent()["backlog"] == 1)
        stage.write_entry(ENTRY)
        within(PATIENCE, lambda: stage.agent()["backlog"] == 0 and stage.agent()["crashes"] == 0)


def test_call_of_plain_celery_ends_so_too(stage: Stage) -> None:
    stage.write_entry("1 / 0\n")
    with plain_celery(stage.stack.redis_url) as app, stage.orchestrator():
        sent = app.send_task(
            "goondan.tool_call",
            kwargs={"call": {"agentName": "speaker", "toolName": "say__word", "args": {}}},
            queue="agent.speaker",
        )
        result = sent.get(timeout=PATIENCE)
        within(PATIENCE, lambda: stage.agent()["backlog"] == 0)

    assert result["error"]["code"] == "E_AGENT_UNAVAILABLE"


def test_success_ends_crash_loop(stage: Stage) -> None:
    stage.write_entry("1 / 0\n")
    with stage.orchestrator():
        assert error_of(stage.say())[0] == "E_AGENT_UNAVAILABLE"
        stage.write_entry(ENTRY)

        def succeeds() -> bool:
            return stage.say().status == "ok"

        within(PATIENCE, succeeds)
        within(PATIENCE, lambda: stage.agent()["crashes"] == 0)

    assert stage.agent()["reason"] is None
