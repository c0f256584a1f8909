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

DEMO = [sys.executable, "-m", "goondan_tasks", "demo"]
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


def wait_for_the_first_handoff(demo: "subprocess.Popen[str]") -> None:
    assert demo.stdout is not None
    for line in demo.stdout:
        if "you → planner" in line:
            return
    raise AssertionError(demo.communicate())


@pytest.mark.usefixtures("leaves_nothing")
def test_demo_hands_task_between_agents_and_reports_json_document() -> None:
    demo = start_demo("--json")
    out, err = demo.communicate(timeout=DEADLINE_SECONDS)
    report = json.loads(out)
    nodes = report["traces"][0]["nodes"]

    assert demo.returncode == 0
    assert "2 tests pass" in report["answer"]
    assert report["usage"]["output"] > 0
    assert [error["code"] for error in report["errors"]] == [
        "E_TOOL_NOT_IN_CATALOG",
        "E_TOOL_INVALID_ARGS",
        "E_PATH_OUTSIDE_WORKDIR",
    ]
    assert [(n["agent"], n["depth"]) for n in nodes if n["kind"] == "request"] == [
        ("planner", 0),
        ("coder", 2),
        ("reviewer", 4),
        ("reviewer", 4),
    ]
    assert len({(n["agent"], n["worker"]) for n in nodes}) == len({n["worker"] for n in nodes}) == 3
    assert "python-project__scaffold" in err


@pytest.mark.usefixtures("leaves_nothing")
def test_demo_outside_terminal_writes_plain_80_character_lines() -> None:
    demo = start_demo()
    out, err = demo.communicate(timeout=DEADLINE_SECONDS)
    lines = out.splitlines()

    assert demo.returncode == 0, err
    assert "\x1b" not in out
    assert [line for line in lines if len(line) > 80 and "coding-swarm" not in line] == []
    steps = ["you → planner", "planner → coder", "coder → reviewer", "coder ← reviewer", "planner ← coder"]
    told = [next(n for n, line in enumerate(lines) if line.strip().startswith(step)) for step in steps]
    assert told == sorted(told)
    assert "    E_PATH_OUTSIDE_WORKDIR" in lines
    trace = lines[lines.index("The trace of the task, as `goondan trace` draws it") :]
    requests = [line.partition("@")[0] for line in trace if " request" in line and "@demo-" in line]
    assert [request.strip("│├└─ ") for request in requests] == ["planner", "coder", "reviewer", "reviewer"]
    assert len([line for line in trace if "─ review__style" in line]) == 2
    wait_until(lambda: session_members(demo.pid) == [])  # one that was killed takes a moment to end


@pytest.mark.usefixtures("leaves_nothing")
def test_ctrl_c_ends_demo_cleanly() -> None:
    demo = start_demo()
    wait_for_the_first_handoff(demo)

    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate(timeout=DEADLINE_SECONDS)

    assert demo.returncode == 130
    assert "Traceback" not in err
    wait_until(lambda: session_members(demo.pid) == [])  # one that was killed takes a moment to end


@pytest.mark.usefixtures("leaves_nothing")
def test_no_process_of_killed_demo_lives_on() -> None:
    demo = start_demo()
    wait_for_the_first_handoff(demo)
    assert len(session_members(demo.pid)) >= 5

    demo.kill()
    demo.communicate()

    wait_until(lambda: not session_members(demo.pid))
