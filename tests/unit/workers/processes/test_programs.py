"""Programs below their guards: output, limits, environment, and how each ended."""

import ast
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from goondan_tasks.authoring.tool_api import ProcessOutcome, RunProcess
from goondan_tasks.contract.errors import ToolCancelledError, ToolError, ToolTimeoutError
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.process import child_environment
from goondan_tasks.machine.sandbox import Sandbox
from tests.processes import runs
from tests.waiting import wait_until
from workers.cancellation import Cancellation
from workers.processes.programs import Guard, ProcessRunner, describe_end

#: within it a program has begun, on a machine with much else to do
BEGINS_SECONDS = 2


@pytest.fixture
def run(tmp_path: Path) -> RunProcess:
    return ProcessRunner(tmp_path)


def sh(run: RunProcess, script: str, *, timeout_seconds: float | None = 20) -> ProcessOutcome:
    return run(["sh", "-c", script], timeout_seconds=timeout_seconds)


def pids_in(tmp_path: Path) -> list[int]:
    return [int(file.read_text()) for file in tmp_path.glob("*.pid") if file.read_text().strip()]


def test_outcome_holds_outputs_and_exit_code(run: RunProcess) -> None:
    outcome = sh(run, "echo out; echo err >&2; exit 3")

    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("out\n", "err\n", 3)
    assert (outcome.signal, outcome.timed_out, outcome.truncated) == (None, False, False)
    assert 0 < outcome.duration_ms < 20_000


def test_program_starts_in_workdir_or_given_directory(run: RunProcess, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    assert run(["pwd"]).stdout.strip() == str(tmp_path)
    assert run(["pwd"], cwd=tmp_path / "sub").stdout.strip() == str(tmp_path / "sub")


def test_program_gets_only_necessary_worker_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = ("GOONDAN_REDIS_URL", "GOONDAN_SECRET_SHOP", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "UNKNOWN")
    for name in (*hidden, "LC_TIME", "SSL_CERT_FILE", "https_proxy"):
        monkeypatch.setenv(name, f"value of {name}")

    lines = ProcessRunner(tmp_path)(["env"], env={"ADDED": "é\n2"}).stdout

    assert [name for name in hidden if f"value of {name}" in lines] == []
    assert "ADDED=é\n2" in lines
    assert f"PATH={os.environ['PATH']}\n" in lines
    for name in ("LC_TIME", "SSL_CERT_FILE", "https_proxy"):
        assert f"{name}=value of {name}\n" in lines


def test_environment_is_made_from_one_that_is_given() -> None:
    environ = {"PATH": "/bin", "LC_ALL": "C", "LCX": "1", "path": "2", "GOONDAN_BUNDLE": "b", "KEPT": "no"}

    assert child_environment(environ) == {"PATH": "/bin", "LC_ALL": "C"}


def test_program_reads_no_input(run: RunProcess) -> None:
    assert run(["cat"], timeout_seconds=20).exit_code == 0


def test_threads_blocked_signals_are_default_in_program(run: RunProcess) -> None:
    script = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    blocked = {signal.SIGTERM, signal.SIGUSR1}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        outcome = run([sys.executable, "-c", script])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)

    assert outcome.stdout == "[]\n"
    # with SIGPIPE ignored, as Python leaves it, `yes` would complain
    assert sh(run, "yes | head -n 1").stderr == ""


def test_signal_that_ended_program_is_named(run: RunProcess) -> None:
    outcome = sh(run, "kill -KILL $$")

    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (-1, "SIGKILL", False)


def test_real_time_signal_has_name_too(run: RunProcess) -> None:
    assert sh(run, "kill -40 $$").signal == "SIG40"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["no-such-program"], errno.ENOENT),
        (["/etc/passwd"], errno.EACCES),
        (["echo", "nul\0"], errno.EINVAL),
        (["echo", "\ud800"], errno.EINVAL),
        (["echo", "x" * 200_000], errno.E2BIG),
    ],
)
def test_oserror_names_program_that_cannot_start(run: RunProcess, argv: list[str], code: int) -> None:
    with pytest.raises(OSError, match=re.escape(repr(argv[0]))) as caught:
        run(argv)

    assert caught.value.errno == code


def test_missing_directory_is_oserror_that_names_it(run: RunProcess, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        run(["true"], cwd=tmp_path / "nowhere")


@pytest.fixture
def bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file into which a stand-in for bubblewrap, without any sandbox, writes its environment."""
    folder, seen = tmp_path / "bin", tmp_path / "environment of bwrap"
    folder.mkdir()
    script = f'#!/bin/sh\nenv > \'{seen}\'\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n'
    (folder / "bwrap").write_text(script, "utf-8")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    sandbox.fault.cache_clear()
    yield seen
    sandbox.fault.cache_clear()


def test_call_variables_reach_program_but_not_bubblewrap(tmp_path: Path, bubblewrap: Path) -> None:
    workdir = tmp_path / "work"
    workdir.mkdir()
    (workdir / "stat").write_text("#!/bin/sh\necho planted")
    (workdir / "stat").chmod(0o755)
    status = workdir.stat()
    box = Sandbox(workdir, identity=(status.st_dev, status.st_ino))
    given = {
        "LD_PRELOAD": "",
        "PATH": f"{workdir}:/usr/bin:/bin",
        "HOME": str(workdir),
        "a-b": "1\n2",
        "UID": "=",
    }

    outcome = ProcessRunner(workdir, sandbox=box)(
        [sys.executable, "-c", "import os; print(dict(os.environ))"], env=given
    )
    program = ast.literal_eval(outcome.stdout)

    assert {name: program[name] for name in given} == given
    names = {line.partition("=")[0] for line in bubblewrap.read_text("utf-8").splitlines()}
    assert names.isdisjoint({"LD_PRELOAD", "a-b", "UID"})
    assert str(workdir) not in bubblewrap.read_text("utf-8").replace(f"PWD={workdir}", "")


@pytest.mark.usefixtures("bubblewrap")
def test_bad_variable_name_for_sandbox_is_oserror(tmp_path: Path) -> None:
    run = ProcessRunner(tmp_path, sandbox=Sandbox(tmp_path))

    for name, value in (("A=B", "1"), ("A", "\0"), ("A", "\ud800")):
        with pytest.raises(OSError):
            run(["true"], env={name: value})


@pytest.mark.usefixtures("bubblewrap")
def test_missing_sandboxed_program_has_shell_exit_code(tmp_path: Path) -> None:
    outcome = ProcessRunner(tmp_path, sandbox=Sandbox(tmp_path))(["no-such-program"])

    assert (outcome.exit_code, outcome.stderr) == (127, "no-such-program: No such file or directory\n")


def test_bad_variable_name_is_oserror(run: RunProcess) -> None:
    with pytest.raises(OSError, match="environment variable name"):
        run(["true"], env={"A=B": "c"})


def test_timeout_returns_output_printed_before(run: RunProcess) -> None:
    outcome = sh(run, "echo before; sleep 60; echo after", timeout_seconds=BEGINS_SECONDS)

    assert outcome.stdout == "before\n"
    assert (outcome.timed_out, outcome.exit_code, outcome.signal) == (True, -1, "SIGTERM")
    assert outcome.duration_ms < 40_000


def test_program_that_ignores_sigterm_is_killed(run: RunProcess) -> None:
    outcome = sh(run, "trap '' TERM; echo ready; while :; do sleep 60; done", timeout_seconds=BEGINS_SECONDS)

    assert (outcome.timed_out, outcome.signal) == (True, "SIGKILL")
    assert outcome.duration_ms < 40_000


def test_program_may_tidy_up_at_sigterm(run: RunProcess) -> None:
    outcome = sh(run, "trap 'echo tidy; exit 4' TERM; sleep 60 & wait", timeout_seconds=BEGINS_SECONDS)

    assert (outcome.stdout, outcome.exit_code, outcome.timed_out) == ("tidy\n", 4, True)


@pytest.mark.parametrize("seconds", [None, 0, -1.0, 60])
def test_program_and_call_end_at_calls_deadline(tmp_path: Path, seconds: float | None) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=1)
    run = ProcessRunner(tmp_path, deadline)

    with pytest.raises(ToolTimeoutError):
        sh(run, "echo $$ > program.pid; sleep 60", timeout_seconds=seconds)

    assert datetime.now(UTC) - deadline < timedelta(seconds=40)
    assert not any(map(runs, pids_in(tmp_path)))


@pytest.mark.parametrize("seconds", [1e300, float("inf")])
def test_huge_timeout_is_not_limit(run: RunProcess, seconds: float) -> None:
    assert sh(run, "echo done", timeout_seconds=seconds).stdout == "done\n"


def test_passed_deadline_ends_program_at_once(tmp_path: Path) -> None:
    run = ProcessRunner(tmp_path, deadline=datetime.now(UTC) - timedelta(days=365_000))
    started = time.monotonic()

    with pytest.raises(ToolTimeoutError):
        sh(run, "sleep 60")

    assert time.monotonic() - started < 40


GRANDCHILDREN = """
setsid sh -c 'echo $$ > session.pid; trap "" TERM HUP; while :; do sleep 60; done' &
(setsid sh -c 'echo $$ > daemon.pid; exec sleep 60' > /dev/null 2>&1 &)
sh -c 'echo $$ > child.pid; exec sleep 60' &
while [ "$(cat session.pid daemon.pid child.pid 2> /dev/null | wc -l)" -lt 3 ]; do :; done
echo ready
"""


def test_timeout_ends_grandchildren_and_daemons_too(run: RunProcess, tmp_path: Path) -> None:
    outcome = sh(run, GRANDCHILDREN + "sleep 60", timeout_seconds=2 * BEGINS_SECONDS)

    assert (outcome.stdout, outcome.timed_out) == ("ready\n", True)
    assert len(pids_in(tmp_path)) == 3
    assert not any(map(runs, pids_in(tmp_path)))


def test_processes_left_by_program_end_with_it(run: RunProcess, tmp_path: Path) -> None:
    outcome = sh(run, GRANDCHILDREN + "exit 5", timeout_seconds=60)

    assert (outcome.exit_code, outcome.timed_out) == (5, False)
    assert len(pids_in(tmp_path)) == 3
    assert not any(map(runs, pids_in(tmp_path)))
    assert outcome.duration_ms < 30_000


FORK_AND_LEAVE = """
import os, time
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    open("generations", "a").write(".")
"""


def test_endlessly_forking_process_is_caught(run: RunProcess, tmp_path: Path) -> None:
    script = f"{sys.executable} -S -c '{FORK_AND_LEAVE}' & sleep 60"

    sh(run, script, timeout_seconds=BEGINS_SECONDS)

    generations = (tmp_path / "generations").stat().st_size
    assert generations > 2
    with pytest.raises(AssertionError):
        wait_until(lambda: (tmp_path / "generations").stat().st_size > generations, seconds=0.3)


def test_million_lines_are_capped_without_blocking_program(run: RunProcess) -> None:
    outcome = run(["seq", "1000000"], max_output_bytes=1_000, timeout_seconds=60)

    assert outcome.exit_code == 0
    assert outcome.truncated
    assert outcome.stdout.startswith("1\n2\n3\n")
    assert len(outcome.stdout) == 1_000


def test_each_output_has_its_own_cap(run: RunProcess) -> None:
    outcome = run(["sh", "-c", "seq 1000; echo oops >&2"], max_output_bytes=10)

    assert (outcome.stdout, outcome.stderr, outcome.truncated) == ("1\n2\n3\n4\n5\n", "oops\n", True)


@pytest.mark.parametrize("limit", [0, -3])
def test_no_output_is_kept_without_room(run: RunProcess, limit: int) -> None:
    outcome = run(["echo", "hello"], max_output_bytes=limit)

    assert (outcome.stdout, outcome.truncated) == ("", True)


def test_output_exactly_at_cap_is_not_truncated(run: RunProcess) -> None:
    outcome = run(["printf", "12345"], max_output_bytes=5)

    assert (outcome.stdout, outcome.truncated) == ("12345", False)


@pytest.mark.parametrize("limit", range(1, 9))
def test_character_is_never_split_at_cap(run: RunProcess, limit: int) -> None:
    outcome = run(["printf", "%s", "é한🙂"], max_output_bytes=limit)

    assert "é한🙂".startswith(outcome.stdout)
    assert outcome.truncated


def test_binary_output_is_decoded_with_replacement_characters(run: RunProcess) -> None:
    outcome = run(["printf", r"\000\377a\303"])

    assert outcome.stdout == "\0\ufffda\ufffd"
    assert not outcome.truncated


def test_program_closing_its_output_is_still_awaited(run: RunProcess) -> None:
    assert sh(run, "exec > /dev/null 2>&1; sleep 0.2; exit 7").exit_code == 7


def test_program_that_signals_its_guard_politely_changes_nothing(run: RunProcess) -> None:
    script = "for s in HUP INT QUIT TERM USR1 USR2; do kill -$s $PPID; done; echo on; exit 6"

    outcome = sh(run, script)

    assert (outcome.stdout, outcome.exit_code) == ("on\n", 6)


def test_program_stopping_its_guard_is_still_ended(run: RunProcess) -> None:
    assert sh(run, "kill -STOP $PPID; sleep 60", timeout_seconds=0.3).timed_out


def test_program_killing_guard_is_killed_with_unknown_outcome(run: RunProcess, tmp_path: Path) -> None:
    script = "echo $$ > program.pid; sh -c 'echo $$ > child.pid; kill -KILL $0; exec sleep 60' $PPID"

    with pytest.raises(ToolError, match="outcome is unknown"):
        sh(run, script)

    wait_until(lambda: not any(map(runs, pids_in(tmp_path))))


def test_runner_works_in_many_threads_at_once(run: RunProcess) -> None:
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: outcomes.append(run(["echo", str(n)]).stdout)) for n in range(12)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(map(int, outcomes)) == list(range(12))


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_no_descriptor_stays_open_after_run(run: RunProcess) -> None:
    before = open_descriptors()

    sh(run, "sleep 60", timeout_seconds=0.1)
    with pytest.raises(FileNotFoundError):
        run(["no-such-program"])
    with pytest.raises(FileNotFoundError):
        run(["true"], cwd=Path("/no/such/directory"))

    assert open_descriptors() <= before


def test_cancelled_call_ends_program_and_its_descendants(tmp_path: Path) -> None:
    cancellation = Cancellation()
    run = ProcessRunner(tmp_path, cancellation=cancellation)
    script = "setsid sleep 60 & echo $! > child.pid; echo $$ > parent.pid; sleep 60"

    def cancel_when_both_run() -> None:
        wait_until(lambda: len(pids_in(tmp_path)) == 2)
        cancellation.set(ToolCancelledError())

    canceller = threading.Thread(target=cancel_when_both_run)
    canceller.start()

    with pytest.raises(ToolCancelledError):
        sh(run, script)

    canceller.join()
    wait_until(lambda: not any(map(runs, pids_in(tmp_path))))


def test_cancelled_call_starts_no_program_that_goes_on(tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.set(ToolCancelledError())

    with pytest.raises(ToolCancelledError):
        sh(ProcessRunner(tmp_path, cancellation=cancellation), "sleep 60")


def test_program_that_has_ended_waits_for_no_cancel(tmp_path: Path) -> None:
    cancellation = Cancellation()
    sh(ProcessRunner(tmp_path, cancellation=cancellation), "true")

    assert cancellation._callbacks == []


COPY = [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read())"]


def test_program_reads_given_input() -> None:
    source, ours = os.pipe()
    guard = Guard(COPY, stdin=source, stdout=subprocess.PIPE, stderr=None)
    os.close(source)
    os.write(ours, b"hello")
    os.close(ours)

    assert guard.process.stdout
    assert guard.process.stdout.read() == b"hello"
    assert guard.end(patience_seconds=10) == 0


def test_program_has_no_input_otherwise() -> None:
    guard = Guard(COPY, stdout=subprocess.PIPE, stderr=None)

    assert guard.process.stdout
    assert guard.process.stdout.read() == b""
    assert guard.end(patience_seconds=10) == 0


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (3, "ended with exit status 3"),
        (-9, "was ended by SIGKILL"),
        (None, "was killed together with its guard"),
    ],
)
def test_exit_code_is_described_in_words(exit_code: int | None, words: str) -> None:
    assert describe_end(exit_code) == words
