"""``goondan demo``: it works, it shows its work, and it leaves nothing behind."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import session_members, with_environment
from tests.waiting import wait_until

DEMO = [sys.executable, "-m", "goondan_tasks.cli", "demo"]
DEADLINE_SECONDS = 60


@pytest.fixture
def leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mark every process of the demo; after the test none runs, and no temporary file is left."""
    marker = f"LEFT_OVER={tmp_path}"
    monkeypatch.setenv("LEFT_OVER", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("GOONDAN_SWARM", "another-swarm")
    yield
    wait_until(lambda: not with_environment(marker))
    wait_until(lambda: not list(tmp_path.glob("goondan-*")))


def start_demo(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*DEMO, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_first_result(demo: "subprocess.Popen[str]") -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "plan__outline" in line:
            return
    raise AssertionError(demo.communicate())


@pytest.mark.usefixtures("leaves_nothing")
def test_the_demo_does_its_work_and_reports_every_call_as_one_json_document() -> None:
    demo = start_demo("--json")
    out, err = demo.communicate(timeout=DEADLINE_SECONDS)
    report = json.loads(out)

    assert demo.returncode == 0
    assert report["counts"]["error"] == 3
    assert sum(report["counts"].values()) == sum(report["workers"].values()) == len(report["results"]) > 20
    assert len(report["workers"]) == 2
    assert {result["meta"]["agentName"] for result in report["results"]} == {"planner", "coder", "reviewer"}
    assert "python-project__scaffold" in err


@pytest.mark.usefixtures("leaves_nothing")
def test_outside_a_terminal_the_demo_writes_plain_lines() -> None:
    demo = start_demo()
    out, err = demo.communicate(timeout=DEADLINE_SECONDS)

    assert demo.returncode == 0, err
    assert "\x1b" not in out
    assert '"code": "E_PATH_OUTSIDE_WORKDIR"' in out
    [line] = [line for line in out.splitlines() if "E_TOOL_NOT_IN_CATALOG" in line and "worker" in line]
    assert line.split()[:2] == ["bash__exec", "agent.planner"]
    assert session_members(demo.pid) == []


@pytest.mark.usefixtures("leaves_nothing")
def test_ctrl_c_ends_the_demo_cleanly() -> None:
    demo = start_demo()
    wait_for_first_result(demo)

    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=DEADLINE_SECONDS)

    assert demo.returncode == 130
    assert "Traceback" not in err
    assert session_members(demo.pid) == []


@pytest.mark.usefixtures("leaves_nothing")
def test_nothing_of_a_killed_demo_lives_on() -> None:
    demo = start_demo()
    wait_for_first_result(demo)
    assert len(session_members(demo.pid)) >= 4

    demo.kill()
    demo.communicate()

    wait_until(lambda: not session_members(demo.pid))
