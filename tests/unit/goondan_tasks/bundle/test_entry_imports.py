"""Entries imported in child processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from goondan_tasks.authoring.entry import Entry, ProbeRecord
from goondan_tasks.bundle import Finding
from goondan_tasks.bundle.entries import FILE_SECONDS, import_entries
from goondan_tasks.changesets.check import IMPORT_SECONDS as ALL_SECONDS
from tests.unit.goondan_tasks.bundle.writing import HANDLERS, TOOL, found_in, told, write
from tests.waiting import wait_until
from workers.tools.entry_files import IMPORT_SECONDS as WORKER_SECONDS

AGENT = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { entry: ./coder.py }
"""


def check(tmp_path: Path, text: str) -> list[Finding]:
    return found_in(write(tmp_path, {"goondan.yaml": TOOL, "echo.py": text}), import_entries=True)


def tools(tmp_path: Path, *texts: str) -> list[Entry]:
    found = []
    for number, text in enumerate(texts):
        found.append(Entry("tool", tmp_path / f"entry_{number}.py"))
        found[-1].file.write_text(text)
    return found


def test_handlers_that_match_exports_have_no_findings(tmp_path: Path) -> None:
    assert check(tmp_path, HANDLERS) == []


@pytest.mark.requirement("bundle.tool.handler-for-every-export")
def test_missing_handler_is_error_and_missing_export_warning(tmp_path: Path) -> None:
    extra, missing = check(tmp_path, "handlers = {'rum': print}\n")

    assert (missing.level, missing.line, missing.path) == ("error", 7, "spec.exports[0].name")
    assert missing.suggestion == "Add it to 'handlers'. Did you mean 'rum'?"
    assert (extra.level, extra.message) == ("warning", "the handler 'rum' has no export")


@pytest.mark.requirement("bundle.tool.handlers-exported")
@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("x = 1\n", 1, "does not define 'handlers'"),
        ("x = 1\ndef (:\n", 2, "invalid syntax"),
        ("x = 1\n\nraise RuntimeError('no\\nway')\n", 3, "importing the file raises RuntimeError: no"),
        ("def load():\n    return {}['key']\n\nload()\n", 2, "raises KeyError: 'key'"),
        ("import no_such_module_at_all\n", 1, "raises ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit(3)"),
        ("import os\nos._exit(4)\n", 1, "exit status 4"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", 1, "by SIGSEGV"),
        ("raise KeyboardInterrupt\n", 1, "raises KeyboardInterrupt"),
        ("class Odd(BaseException): pass\nraise Odd('x')\n", 2, "raises Odd: x"),
        ("def f():\n    f()\nf()\n", 2, "raises RecursionError"),
        ("while True:\n    print('x' * 1000)\n", 2, "prints or writes more than 1048576 bytes"),
        ("import os\nos.closerange(0, 100)\n", 1, ""),
        ("import sys\nsys.excepthook = lambda *a: None\nraise ValueError\n", 1, "exit status 1"),
    ],
)
def test_unimportable_file_is_finding_in_that_file(tmp_path: Path, text: str, line: int, part: str) -> None:
    (finding,) = check(tmp_path, text)

    assert Path(finding.file) == tmp_path / "echo.py"
    assert (finding.code, finding.line) == ("E_CONFIG_SCHEMA_INVALID", line)
    assert (finding.resource, finding.path) == ("Tool/echo", "spec.entry")
    assert part in finding.message
    assert finding.suggestion


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("handlers = {'run': print}\n", 1, "does not define 'handle'"),
        ("x = 1\ndef handle(event): ...\n", 2, "'handle' cannot be called with (ctx, event)"),
        ("x = 1\nraise RuntimeError('no')\n", 2, "importing the file raises RuntimeError: no"),
    ],
)
def test_entry_of_agent_is_imported_too(tmp_path: Path, text: str, line: int, part: str) -> None:
    (finding,) = found_in(write(tmp_path, {"goondan.yaml": AGENT, "coder.py": text}), import_entries=True)

    assert (finding.resource, finding.path) == ("Agent/coder", "spec.entry")
    assert (Path(finding.file), finding.line) == (tmp_path / "coder.py", line)
    assert part in finding.message
    assert finding.suggestion


def test_agent_whose_entry_has_handle_has_no_findings(tmp_path: Path) -> None:
    text = "async def handle(ctx, event): ...\n"

    assert found_in(write(tmp_path, {"goondan.yaml": AGENT, "coder.py": text}), import_entries=True) == []


def test_file_that_hangs_is_ended(tmp_path: Path) -> None:
    (record,) = import_entries(tools(tmp_path, "while True: pass\n"), seconds=0.5)

    assert record.problem == "importing the file does not end within 0.5 s"


def test_file_has_workers_time_and_all_files_have_more() -> None:
    assert FILE_SECONDS == WORKER_SECONDS
    assert ALL_SECONDS > FILE_SECONDS


def test_each_file_is_judged_separately(tmp_path: Path) -> None:
    hangs, exits, raises = "import time\ntime.sleep(60)\n", "import os\nos._exit(0)\n", "1 / 0\n"
    fine = "handlers = {'a': print}\n"

    records = import_entries(tools(tmp_path, fine, exits, fine, hangs, raises, fine), seconds=4)

    assert [record.handlers == ("a",) for record in records] == [True, False, True, False, False, True]


def test_one_child_imports_tool_agent_and_extension_entries(tmp_path: Path) -> None:
    who = "import os, pathlib\npathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\n"
    extension = AGENT.replace("Agent", "Extension").replace("coder", "clock")
    write(
        tmp_path,
        {
            "goondan.yaml": f"{TOOL}---{AGENT}---{extension}",
            "echo.py": f"{who}{HANDLERS}",
            "coder.py": f"{who}def handle(ctx, event): ...\n",
            "clock.py": f"{who}def register(api): ...\n",
        },
    )

    assert [found for found in found_in(tmp_path, import_entries=True) if found.level == "error"] == []
    assert len({file.read_text() for file in tmp_path.glob("*.pid")}) == 1
    assert len(list(tmp_path.glob("*.pid"))) == 3


def test_environment_of_check_holds_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://secret@host")
    monkeypatch.setenv("API_KEY", "secret")

    (record,) = import_entries(tools(tmp_path, "import os\nhandlers = {key: print for key in os.environ}\n"))

    assert set(record.handlers) <= {"PATH", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "LANG", "LC_CTYPE"}


def test_import_check_leaves_no_processes_or_files(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    text = (
        "import subprocess, pathlib\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))\n"
        "open('litter', 'w').write('x')\n"
        "handlers = {'a': print}\n"
    )

    (record,) = import_entries(tools(tmp_path, text))

    assert record == ProbeRecord(handlers=("a",), files=record.files)
    assert not _is_running(int(pid_file.read_text()))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["entry_0.py", "pid"]


def test_child_ends_with_process_that_checks(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    says = f"pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}} ')"
    [entry] = tools(tmp_path, f"import os, pathlib, time\n{says}\ntime.sleep(600)\n")
    imports = "from goondan_tasks.bundle.entries import import_entries\n"
    checker = subprocess.Popen(
        [sys.executable, "-c", f"{imports}import_entries([{('tool', str(entry.file))}])\n"]
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith(" "))

    checker.kill()
    checker.wait(10)

    assert not _is_running(int(pid_file.read_text()))


def test_output_printed_by_imported_file_is_not_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "import os\nprint('loud')\nos.system('echo louder >&2')\nhandlers = {'a': print}\n"

    assert import_entries(tools(tmp_path, text))[0].problem is None
    assert capfd.readouterr() == ("", "")


def test_both_tools_sharing_file_are_reported(tmp_path: Path) -> None:
    other = TOOL.replace("name: echo", "name: other").replace("name: run", "name: walk")

    findings = found_in(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{other}"}), import_entries=True)

    assert told(findings) == [
        (14, "E_CONFIG_SCHEMA_INVALID", "spec.exports"),
        (15, "E_CONFIG_SCHEMA_INVALID", "spec.exports[0].name"),
    ]


def test_bundle_without_tools_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    text = "apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: a }\n"

    assert found_in(write(tmp_path, {"goondan.yaml": text}), import_entries=True) == []


def _is_running(pid: int) -> bool:
    """Say whether a process still runs, once the kernel had a moment to end it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return False
        if state == "Z":
            return False
        time.sleep(0.01)
    return True


def test_all_files_have_deadline_together(tmp_path: Path) -> None:
    hanging = tools(tmp_path, *["import time\ntime.sleep(60)\n"] * 3)
    start = time.monotonic()

    records = import_entries(hanging, seconds=30.0, deadline=start + 2.0)

    assert ["of the bundle together" in str(record.problem) for record in records] == [True] * 3
    assert time.monotonic() - start < 30.0
