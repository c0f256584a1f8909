"""The example of a swarm that changes itself, on two machines and under load."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.contract.messages import ToolCallResult
from tests.integration.machines import Load, Machines
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "self-evolving"
PARTS = ("goondan.yaml", "tools.yaml", "agents/*.py", "tools/*.py", "prompts/*.md")
TEXT = "the quick brown fox\njumps over the lazy dog\n"
#: of a tool that changes
CALLS = [{"agentName": "clerk", "toolName": "text__lines", "args": {"text": TEXT}}] * 8
MACHINES = ("east", "west")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """Run the example on two machines, which share Redis, the workdirs and the git remote."""
    files = {
        str(file.relative_to(EXAMPLE)): file.read_text(encoding="utf-8")
        for part in PARTS
        for file in EXAMPLE.glob(part)
    }
    place = tmp_path_factory.mktemp("machines")
    with Machines(place, files=files, workspace="self-evolving") as running:
        for name in MACHINES:
            running.start(name, "clerk")
        yield running


def counted(machines: Machines, what: str) -> ToolCallResult:
    return machines.client.call("clerk", f"text__{what}", {"text": TEXT}, timeout=60)


def has_run_everywhere(machines: Machines, workers: set[str]) -> bool:
    """Call the new tool, note which worker has run it, and say whether all have by now."""
    result = counted(machines, "words")
    if result.status == "ok":
        workers.add(str(result.meta.worker))
    return len(workers) == len(MACHINES)


def goondan(machines: Machines, machine: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a person on one of the machines does."""
    environment = {
        **machines.stack._worker_environment(),
        "GOONDAN_BUNDLE": str(machines.clone(machine).folder),
    }
    command = [sys.executable, "-m", "goondan_tasks", *arguments, "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_example_has_no_findings() -> None:
    bundle, findings = inspect_bundle(EXAMPLE)

    assert findings == []
    assert bundle is not None


def test_program_beside_example_tells_its_story() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "evolve.py")], capture_output=True, text=True, timeout=180, check=False
    )

    assert done.returncode == 0, done.stderr
    assert '"words": 9' in done.stdout
    assert "clerk: Count words" in done.stdout
    assert "'text__words' is not available" in done.stdout


@pytest.mark.requirement("changeset.pattern", "changeset.safe-point")
def test_agent_gives_itself_tool_while_everything_goes_on(machines: Machines) -> None:
    client, args = machines.client, {"text": TEXT, "seconds": 20}
    before = counted(machines, "words")
    with Load(client, CALLS) as load:
        slow = [client.submit("clerk", "text__lines", args, instance_key=f"slow-{n}") for n in range(4)]
        wait_until(lambda: all(call.status() == "running" for call in slow))
        answer = client.request("clerk", {"count": "words", "text": TEXT}, instance_key="job", timeout=120)
        still_run = [call.status() for call in slow]
        workers: set[str] = set()
        wait_until(lambda: has_run_everywhere(machines, workers), 60, show=lambda: workers)
        old = [call.result(timeout=60).output for call in slow]
    told = client.request("clerk", {"count": "words", "text": TEXT}, instance_key="next", timeout=60)

    assert before.error is not None and before.error.code == "E_TOOL_NOT_IN_CATALOG"
    assert (answer.response["words"], answer.response["edition"]) == (9, 2)
    assert (
        answer.response["revision"] == f"git:{machines.author.git('ls-remote', 'origin', 'main').split()[0]}"
    )
    assert (still_run, old) == (["running"] * 4, [{"lines": 2, "edition": 1}] * 4)
    assert (load.errors, {result.output["edition"] for result in load.results}) == ([], {1, 2})
    assert (told.response["prompt"].splitlines()[-1], told.response["revision"]) == (
        "You can count words.",
        None,
    )


def test_rollback_on_other_machine_brings_old_tools_back(machines: Machines) -> None:
    with Load(machines.client, CALLS) as load:
        done = goondan(machines, "west", "rollback", "HEAD~1")
    active = goondan(machines, "east", "changeset", "active")
    words, lines = counted(machines, "words"), counted(machines, "lines")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["activation"] == {"status": "active", "ref": told["newRef"]}
    assert json.loads(active.stdout)["active"] == told["newRef"]
    assert load.errors == []
    assert words.error is not None and words.error.code == "E_TOOL_NOT_IN_CATALOG"
    assert lines.output == {"lines": 2, "edition": 1}


@pytest.mark.requirement("changeset.only-way")
def test_edited_folder_files_do_not_change_running_tools(machines: Machines) -> None:
    folders = [machines.clone(name).folder for name in MACHINES]
    for folder in folders:
        (folder / "tools/text.py").write_text("EDITION = 9\nhandlers = {}\n", encoding="utf-8")
    try:
        outputs = [counted(machines, "lines").output for _ in range(8)]
    finally:
        for name in MACHINES:
            machines.clone(name).git("checkout", "--quiet", "--", ".")

    assert outputs == [{"lines": 2, "edition": 1}] * 8
