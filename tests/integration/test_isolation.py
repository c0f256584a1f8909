"""Tools with ``isolation: process`` on a real worker: each failure is one call's, and the worker goes on."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCallError, ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.processes import children_of, lease_guards_of, runs
from tests.waiting import wait_until

ISOLATION_BUNDLE = Path(__file__).parent.parent / "bundles" / "isolation"
PATIENCE = 60

Call = Callable[..., ToolCallResult]


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    limits = {"GOONDAN_MAX_ARGS_BYTES": "4000000", "GOONDAN_MAX_OUTPUT_BYTES": "4000000"}
    with LocalStack(ISOLATION_BUNDLE, environment=limits) as stack:
        yield stack


@pytest.fixture
def call(stack: LocalStack) -> Iterator[Call]:
    """Call a tool of the founder. Afterwards the worker must still be the same, and at work."""
    [worker] = stack.workers

    def call(tool: str, args: dict[str, Any] | None = None, **fields: Any) -> ToolCallResult:
        return stack.client.call("founder", tool, args or {}, timeout=PATIENCE, **fields)

    yield call
    assert call("plain__pid").output == worker.pid
    assert call("apart__echo", {"n": 1}).output == {"n": 1}


def error_of(result: ToolCallResult) -> ToolCallError:
    assert result.status == "error"
    assert result.error is not None
    return result.error


def ended(result: ToolCallResult) -> tuple[str, str]:
    error = error_of(result)
    return error.code, error.message


def pid_in(mark: Path) -> int:
    wait_until(lambda: mark.exists() and mark.read_text(encoding="utf-8").strip(), PATIENCE)
    return int(mark.read_text(encoding="utf-8"))


def parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[1])


def test_same_child_takes_one_call_after_other(stack: LocalStack, call: Call) -> None:
    pids = {call("apart__pid").output for _ in range(3)}
    assert len(pids) == 1
    assert pids != {stack.workers[0].pid}


def test_export_with_other_memory_limit_has_other_child(call: Call) -> None:
    assert call("small__pid").output != call("apart__pid").output


def test_async_handler_runs_in_child(stack: LocalStack, call: Call) -> None:
    assert call("apart__async").output == call("apart__pid").output


@pytest.mark.parametrize("tool", ["sleeps", "stubborn"])
def test_handler_past_its_limit_is_ended(call: Call, tmp_path: Path, tool: str) -> None:
    mark = tmp_path / "pid"
    result = call(f"apart__{tool}", {"mark": str(mark)}, timeout_seconds=1)
    assert ended(result) == ("E_TOOL_TIMEOUT", "The tool did not finish within 1 s.")
    assert not runs(pid_in(mark))


def test_processes_in_another_session_end_with_handler(call: Call, tmp_path: Path) -> None:
    mark = tmp_path / "daemon"
    result = call("apart__daemon", {"mark": str(mark)}, timeout_seconds=2)
    assert error_of(result).code == "E_TOOL_TIMEOUT"
    assert not runs(pid_in(mark))


@pytest.mark.parametrize("tool", ["tidies", "tidies-async"])
def test_handler_that_is_ended_can_tidy_up(call: Call, tmp_path: Path, tool: str) -> None:
    tidied = tmp_path / "tidied"
    args = {"mark": str(tmp_path / "pid"), "tidied": str(tidied)}
    assert error_of(call(f"apart__{tool}", args, timeout_seconds=1)).code == "E_TOOL_TIMEOUT"
    assert tidied.read_text(encoding="utf-8") == "True"


@pytest.mark.parametrize(
    ("tool", "message"),
    [
        ("apart__segfault", "The tool's process was ended by SIGSEGV."),
        ("apart__exits", "The tool's process ended with exit status 3."),
        ("small__exits", "The tool's process ended with exit status 3 (its memoryMb is 100)."),
    ],
)
def test_crash_of_child_is_calls_result(call: Call, tool: str, message: str) -> None:
    assert ended(call(tool)) == ("E_TOOL_CRASHED", message)


def test_crash_shows_where_in_workers_log(stack: LocalStack, call: Call) -> None:
    call("apart__segfault")
    log = stack.log(stack.workers[0])
    assert "about to fall" in log
    assert "casting.py" in log[log.index("Segmentation fault") :]


def test_exceeding_memory_limit_is_crash_naming_it(call: Call) -> None:
    assert call("small__grows", {"megabytes": 10}).output == 10 * 1_048_576
    crashed = ended(call("small__grows", {"megabytes": 200}))
    assert crashed == ("E_TOOL_CRASHED", "The tool ran out of memory (its memoryMb is 100).")
    assert call("apart__grows", {"megabytes": 200}).status == "ok"


def test_child_killed_from_outside_is_crash(stack: LocalStack, call: Call, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    running = stack.client.submit("founder", "apart__sleeps", {"mark": str(mark)})
    os.kill(pid_in(mark), signal.SIGKILL)
    crashed = ended(running.result(PATIENCE))
    assert crashed == ("E_TOOL_CRASHED", "The tool's process was ended by SIGKILL.")


def test_child_killed_with_its_guard_is_crash(stack: LocalStack, call: Call, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    running = stack.client.submit("founder", "apart__sleeps", {"mark": str(mark)})
    child = pid_in(mark)
    os.kill(parent(child), signal.SIGKILL)
    assert error_of(running.result(PATIENCE)).code == "E_TOOL_CRASHED"
    wait_until(lambda: not runs(child))


def test_death_of_idle_child_is_not_calls_failure(call: Call) -> None:
    first = call("apart__pid").output
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not runs(first))
    second = call("apart__pid")
    assert second.status == "ok"
    assert second.output != first


def test_output_printed_by_tool_goes_to_workers_log(stack: LocalStack, call: Call) -> None:
    assert call("apart__prints").output == "printed"
    log = stack.log(stack.workers[0])
    for line in ("printed by the tool", "to standard error", "written by the tool", "said by a program"):
        assert line in log


def test_lines_of_logger_carry_fields_of_call(stack: LocalStack, call: Call) -> None:
    result = call("apart__logs", tool_call_id="pour-1")
    assert result.status == "ok"
    log = stack.log(stack.workers[0])
    lines = log.splitlines()
    [poured] = [line for line in lines if "metal.poured" in line]
    assert "degrees=1500" in poured
    assert "{'odd'}" in poured
    assert "tool_call_id=pour-1" in poured
    assert [line for line in lines if "metal.cooling" in line and "warning" in line]
    assert "CastingError: crack" in log[log.index("metal.cracked") :]


def test_large_arguments_and_outputs_pass(call: Call) -> None:
    args = {"text": "é" * 1_000_000, "numbers": list(range(10_000))}
    assert call("apart__echo", args).output == args


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"kind": "own"}, ("E_CASTING", "CastingError", "too cold", "https://foundry.example/heat")),
        ({"kind": "missing", "args": [2, "no mould"]}, ("ENOENT", "FileNotFoundError", None, None)),
        (
            {"kind": "exit", "args": [4]},
            ("E_TOOL", "SystemExit", "4", "https://docs.goondan.ai/errors/E_TOOL"),
        ),
    ],
)
def test_exception_in_isolated_handler_is_described_as_usual(
    call: Call, args: dict[str, Any], expected: tuple[str, str, str | None, str | None]
) -> None:
    error = error_of(call("apart__raises", args))
    message = expected[2] or "[Errno 2] no mould"
    assert (error.code, error.name, error.message, error.help_url) == (*expected[:2], message, expected[3])


def test_log_says_where_handler_raised(stack: LocalStack, call: Call) -> None:
    call("apart__raises", {"kind": "missing", "args": [2, "no pattern"]}, tool_call_id="raises-1")
    log = stack.log(stack.workers[0])
    raised = log[log.index("FileNotFoundError: [Errno 2] no pattern") - 1000 :]
    assert "call.raised" in raised
    assert re.search(r'File ".*/tools/\w+\.py", line \d+, in ', raised)


def test_entry_that_raises_is_calls_error(call: Call) -> None:
    assert ended(call("broken__run")) == ("E_TOOL", "cold furnace")


def test_isolated_handler_has_same_context_as_in_worker(call: Call) -> None:
    fields = {"tool_call_id": "c-1", "turn_id": "t-1", "instance_key": "mould"}
    apart, plain = call("apart__context", **fields), call("plain__context", **{**fields, "turn_id": "t-2"})
    names = ("agentName", "instanceKey", "toolCallId", "workdir", "cancelled", "hasDeadline", "fields")
    assert [apart.output[name] for name in names] == [plain.output[name] for name in names]
    assert apart.output["traceId"] == apart.meta.trace_id
    assert apart.output["message"]["data"]["content"][0]["toolCallId"] == "c-1"


def test_state_of_process_does_not_reach_next_call(call: Call) -> None:
    first, second = call("apart__leaves"), call("apart__leaves")
    assert first.output == second.output
    assert second.output[1] is None


def test_module_state_lasts_as_long_as_child(call: Call) -> None:
    remembered = [call("apart__remembers", tool_call_id=name).output for name in ("a", "b")]
    assert remembered[1] == [*remembered[0], "b"]


def test_fork_that_comes_back_too_disturbs_nothing(call: Call) -> None:
    assert call("apart__forks").output is True


@pytest.mark.parametrize("tool", ["sleeps", "stubborn", "daemon"])
def test_cancelled_call_is_ended_with_all_it_started(
    stack: LocalStack, call: Call, tmp_path: Path, tool: str
) -> None:
    mark = tmp_path / "pid"
    running = stack.client.submit("founder", f"apart__{tool}", {"mark": str(mark)})
    process = pid_in(mark)
    running.cancel()
    assert error_of(running.result(PATIENCE)).code == "E_TOOL_CANCELLED"
    wait_until(lambda: not runs(process))


def test_progress_reaches_caller_and_its_faults_handler(
    stack: LocalStack, call: Call, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    running = stack.client.submit("founder", "apart__tells", {"release": str(release)})
    wait_until(running.progress, PATIENCE)
    progress = running.progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (1, 4, "melting")
    release.touch()
    assert "done must be a number from 0" in error_of(running.result(PATIENCE)).message


def test_crash_is_retried_where_export_allows_it(call: Call) -> None:
    result = call("apart__falls-once", instance_key="retry")
    assert (result.output, result.meta.attempt) == ("stands", 2)


def test_isolated_handlers_program_ends_at_own_limit(call: Call) -> None:
    assert call("apart__program", {"script": "echo cast"}).output == ["cast\n", 0, False]
    assert call("apart__program", {"script": "sleep 60", "seconds": 0.2}).output[2] is True


def test_program_of_isolated_handler_ends_with_call(call: Call, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"echo $$ > {mark}; sleep 60"
    assert error_of(call("apart__program", {"script": script}, timeout_seconds=2)).code == "E_TOOL_TIMEOUT"
    assert not runs(pid_in(mark))


def test_concurrent_calls_have_separate_undisturbed_children(
    stack: LocalStack, call: Call, tmp_path: Path
) -> None:
    marks, release = [tmp_path / str(n) for n in range(7)], tmp_path / "release"
    waiting = [
        stack.client.submit("founder", "apart__waits", {"mark": str(mark), "release": str(release)})
        for mark in marks
    ]
    children = [pid_in(mark) for mark in marks]
    assert error_of(call("apart__segfault")).code == "E_TOOL_CRASHED"
    assert call("apart__echo", {"n": 2}).output == {"n": 2}
    release.touch()
    assert [pending.result(PATIENCE).output for pending in waiting] == children
    assert len(set(children)) == 7


def test_there_are_never_more_children_than_places(stack: LocalStack, call: Call) -> None:
    call("small__pid")
    calls = [{"agentName": "founder", "toolName": "apart__pid", "args": {}}] * 200
    pids = {pending.result(PATIENCE).output for pending in stack.client.submit_many(calls)}
    assert len(pids) <= 8
    worker = stack.workers[0].pid
    assert len(set(children_of(worker)) - set(lease_guards_of(worker))) <= 8


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """A stack with short leases, for tests that end its workers."""
    environment = {"GOONDAN_LEASE_SECONDS": "2"}
    with LocalStack(ISOLATION_BUNDLE, workers=0, environment=environment) as stack:
        yield Crew(stack)


@pytest.fixture
def short(crew: Crew) -> LocalStack:
    return crew.stack


def test_killed_worker_leaves_no_child_behind(crew: Crew, short: LocalStack, tmp_path: Path) -> None:
    [worker] = crew.muster()
    marks = [tmp_path / "stubborn", tmp_path / "daemon"]
    calls = [short.client.submit("founder", f"apart__{mark.name}", {"mark": str(mark)}) for mark in marks]
    idle = short.client.call("founder", "small__pid", timeout=PATIENCE).output
    tree = [*map(pid_in, marks), idle]
    tree += [parent(idle), parent(tree[0])]
    assert all(map(runs, tree))
    worker.kill()
    wait_until(lambda: not any(map(runs, tree)))
    crew.add()
    assert {error_of(call.result(PATIENCE)).code for call in calls} == {"E_TOOL_OUTCOME_UNKNOWN"}


def test_sigterm_lets_isolated_call_end_then_removes_children(
    crew: Crew, short: LocalStack, tmp_path: Path
) -> None:
    [worker] = crew.muster()
    mark = tmp_path / "daemon"
    running = short.client.submit("founder", "apart__daemon", {"mark": str(mark), "seconds": 2})
    tree = [pid_in(mark), short.client.call("founder", "small__pid", timeout=PATIENCE).output]
    worker.send_signal(signal.SIGTERM)
    result = running.result(PATIENCE)
    assert result.status == "ok"
    assert worker.wait(PATIENCE) == 0
    wait_until(lambda: not any(map(runs, [*tree, result.output])))
