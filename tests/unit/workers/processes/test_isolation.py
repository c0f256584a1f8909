"""Calls in children of this process: what they answer, who ends them, and how many there are."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker_config import serializer
from goondan_tasks.authoring.tool_api import EmitOutput, ToolContext
from goondan_tasks.bundle import Bundle, inspect_bundle, load_bundle
from goondan_tasks.contract.errors import ToolCancelledError, ToolCrashedError, ToolTimeoutError
from goondan_tasks.contract.failure import DescribedError
from goondan_tasks.contract.messages import Message
from goondan_tasks.contract.output import emit_nowhere
from tests.processes import runs
from tests.waiting import wait_until
from workers.cancellation import Callback, Cancellation
from workers.processes.isolation import ChildKind, Children, IsolatedTool, Isolation
from workers.processes.programs import ProcessRunner
from workers.reporters import OutputEmitter
from workers.testing import run_tool

ISOLATION_BUNDLE = Path(__file__).parents[3] / "bundles" / "isolation"
CASTING = ISOLATION_BUNDLE / "tools" / "casting.py"


@pytest.fixture(scope="module")
def isolation_bundle() -> Bundle:
    return load_bundle(ISOLATION_BUNDLE)


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(limit=2) as children:
        yield children


def tool(isolation_bundle: Bundle, children: Children, name: str) -> IsolatedTool:
    return IsolatedTool(
        isolation_bundle.bound_tools("founder")[name], Isolation(children, "https://help.example/")
    )


def run(
    isolated: IsolatedTool, workdir: Path, args: Any = None, emit: EmitOutput = emit_nowhere, **given: Any
) -> Any:
    deadline = datetime.now(UTC) + timedelta(seconds=60)
    message = Message(id="m-1", data={}, created_at="2026-02-01T10:00:00.000Z", source={})
    ctx = ToolContext(
        agent_name="founder",
        instance_key="default",
        turn_id="t-1",
        trace_id="0" * 32,
        tool_call_id="c-1",
        message=message,
        workdir=workdir,
        logger=structlog.get_logger(),
        run_process=ProcessRunner(workdir),
        progress=lambda done, total=None, message=None: None,
        emit=emit,
        deadline=deadline,
    )
    terms: dict[str, Any] = {"limit_seconds": 60, "cancellation": Cancellation(), **given}
    return isolated.run(ctx, args or {}, **terms)


def emitter() -> tuple[OutputEmitter[bytes], list[bytes]]:
    """Return what takes output, and the list where it posts it; no post is ever answered."""
    posts: list[bytes] = []
    return OutputEmitter({"attempt": 1}, bytes, lambda post, _: posts.append(post), lambda *_: None), posts


def test_isolated_handler_output_arrives_whole_and_ordered(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    emit, posts = emitter()
    isolated = tool(isolation_bundle, children, "apart__emits")

    assert run(isolated, tmp_path, {"chunks": 30_000}, emit=emit) == "E_TOOL_BAD_OUTPUT"
    emit.flush()

    events = [event for post in posts for event in serializer.decode(post)]
    text = "".join(event["chunk"] for event in events if isinstance(event["chunk"], str))
    assert text == "".join(f"{number} " for number in range(30_000))
    assert events[-1]["chunk"] == {"done": True}


def test_output_of_isolated_handler_that_raises_arrives(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    emit, posts = emitter()
    with pytest.raises(DescribedError):
        run(tool(isolation_bundle, children, "apart__emits"), tmp_path, {"raises": "cold"}, emit=emit)
    emit.flush()
    assert b'"chunk":"0 "' in b"".join(posts)
    assert b'"chunk":{"done":true}' in b"".join(posts)


def test_isolated_handler_that_nobody_follows_sends_no_output(
    isolation_bundle: Bundle, children: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relayed: list[Any] = []
    monkeypatch.setattr(
        "workers.processes.isolation.relay_output", lambda emit, events: relayed.append(events)
    )

    assert run(tool(isolation_bundle, children, "apart__emits"), tmp_path) == "E_TOOL_BAD_OUTPUT"
    assert relayed == []


def pid_in(mark: Path) -> int:
    wait_until(lambda: mark.exists() and mark.read_text(encoding="utf-8"), 30)
    return int(mark.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["apart__sleeps", "apart__stubborn", "apart__daemon"])
def test_cancel_ends_handler_and_processes_it_started(
    isolation_bundle: Bundle, children: Children, tmp_path: Path, name: str
) -> None:
    cancellation, mark = Cancellation(), tmp_path / "pid"

    def cancel() -> None:
        pid_in(mark)
        cancellation.set(ToolCancelledError())

    canceller = threading.Thread(target=cancel)
    canceller.start()
    isolated = tool(isolation_bundle, children, name)
    with pytest.raises(ToolCrashedError):
        run(isolated, tmp_path, {"mark": str(mark)}, cancellation=cancellation)
    canceller.join()
    assert not runs(pid_in(mark))


class LateCancellation(Cancellation):
    """Set at the last moment: the handler has returned, and the child is on its way back."""

    def on_cancel(self, callback: Callback, *, or_end: bool = False) -> Callable[[], None]:
        return lambda: self.set(ToolCancelledError())


def test_late_cancel_does_not_reach_next_call(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    pids = tool(isolation_bundle, children, "apart__pid")
    first = run(pids, tmp_path)
    with pytest.raises(ToolCancelledError):
        run(pids, tmp_path, cancellation=LateCancellation())
    assert not runs(first)
    assert run(pids, tmp_path) != first


def test_limit_counts_from_start_of_handler(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    slow = Path(shutil.copytree(ISOLATION_BUNDLE, tmp_path / "slow"))
    entry = slow / "tools" / CASTING.name
    entry.write_text(f"import time\ntime.sleep(3)\n{entry.read_text('utf-8')}", "utf-8")
    assert run(tool(load_bundle(slow), children, "apart__pid"), tmp_path, limit_seconds=2)
    with pytest.raises(ToolTimeoutError, match=r"within 0\.1 s"):
        run(
            tool(isolation_bundle, children, "apart__sleeps"),
            tmp_path,
            {"mark": str(tmp_path / "pid")},
            limit_seconds=0.1,
        )


def test_limit_of_memory_may_be_absurd(isolation_bundle: Bundle, children: Children, tmp_path: Path) -> None:
    def grow(memory_mb: int) -> Any:
        bound = isolation_bundle.bound_tools("founder")["small__grows"]
        export = bound.export.model_copy(update={"memory_mb": memory_mb})
        isolated = IsolatedTool(replace(bound, export=export), Isolation(children, ""))
        return run(isolated, tmp_path, {"megabytes": 20})

    with pytest.raises(ToolCrashedError, match=r"\(its memoryMb is 1\)"):
        grow(1)
    assert grow(10**15) == 20 * 1_048_576


def test_failure_is_described_in_child(isolation_bundle: Bundle, children: Children, tmp_path: Path) -> None:
    with pytest.raises(DescribedError) as raised:
        run(tool(isolation_bundle, children, "apart__raises"), tmp_path, {"kind": "value"})
    assert raised.value.code == "E_TOOL"
    assert raised.value.help_url == "https://help.example/E_TOOL"
    assert raised.value.description.name == "ValueError"


def test_child_that_breaks_protocol_has_crashed(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    with pytest.raises(ToolCrashedError, match="disturbed"):
        run(tool(isolation_bundle, children, "apart__babbles"), tmp_path)
    assert run(tool(isolation_bundle, children, "apart__echo"), tmp_path, {"n": 1}) == {"n": 1}


def test_output_beyond_message_limit_fails_but_child_stays(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    isolation = Isolation(children, "", max_message_bytes=1_000)
    echo, pid = (
        IsolatedTool(isolation_bundle.bound_tools("founder")[f"apart__{name}"], isolation)
        for name in ("echo", "pid")
    )
    first = run(pid, tmp_path)
    with pytest.raises(DescribedError, match="at most 1000 are allowed") as raised:
        run(echo, tmp_path, {"text": "x" * 1_000})
    assert raised.value.code == "E_PAYLOAD_TOO_LARGE"
    assert run(pid, tmp_path) == first


def test_leftover_thread_logs_nothing_into_next_call(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    run(tool(isolation_bundle, children, "apart__mutters"), tmp_path)  # it may log until it has ended
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            run(tool(isolation_bundle, children, "apart__pid"), tmp_path)
    assert [line["event"] for line in lines if line["event"] == "muttered"] == []


def test_idle_child_is_ended_after_while(isolation_bundle: Bundle, tmp_path: Path) -> None:
    with Children(idle_seconds=0.2) as children:
        pid = run(tool(isolation_bundle, children, "apart__pid"), tmp_path)
        wait_until(lambda: not runs(pid))
        assert run(tool(isolation_bundle, children, "apart__pid"), tmp_path) != pid


def test_longest_idle_child_yields_to_another_kind(children: Children) -> None:
    kinds = [ChildKind(CASTING, memory_mb) for memory_mb in (None, 1_000, 2_000)]
    alive = []
    for kind in kinds:
        with children.lend(kind) as child:
            alive.append(child)
    assert [child.is_alive() for child in alive[1:]] == [True, True]
    assert alive[0].end() is None
    with children.lend(kinds[1]) as child:
        assert child is alive[1]


def test_more_calls_than_places_get_their_children(children: Children) -> None:
    kind = ChildKind(CASTING, None)
    with children.lend(kind) as one, children.lend(kind) as two, children.lend(kind) as three:
        assert len({one, two, three}) == 3


def test_child_is_ended_after_exception(children: Children) -> None:
    kind = ChildKind(CASTING, None)
    with pytest.raises(KeyError), children.lend(kind) as first:
        raise KeyError
    with children.lend(kind) as second:
        assert second is not first


def test_closing_ends_all_that_wait(isolation_bundle: Bundle, tmp_path: Path) -> None:
    with Children(limit=2) as children:
        pid = run(tool(isolation_bundle, children, "apart__pid"), tmp_path)
        with children.lend(ChildKind(CASTING, None)) as child:
            children.close()
            assert child.is_alive()
    assert not runs(pid)


def test_missing_handler_is_reported_as_in_worker(
    isolation_bundle: Bundle, children: Children, tmp_path: Path
) -> None:
    result = run_tool(isolation_bundle, "founder", "apart__missing")
    assert result.error is not None
    assert result.error.code == "E_TOOL_NOT_FOUND"
    assert result.error.message == "Tool 'apart__missing' has no handler 'missing' in casting.py."


def test_run_tool_isolates_too_and_leaves_no_child(isolation_bundle: Bundle) -> None:
    result = run_tool(isolation_bundle, "founder", "apart__pid")
    assert result.status == "ok"
    assert result.output != os.getpid()
    assert not runs(result.output)
    crashed = run_tool(isolation_bundle, "founder", "apart__exits")
    assert crashed.error is not None
    assert crashed.error.code == "E_TOOL_CRASHED"


def test_run_tool_ends_isolated_handler_past_its_limit(isolation_bundle: Bundle, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    result = run_tool(isolation_bundle, "founder", "apart__sleeps", {"mark": str(mark)}, timeout_seconds=1)
    assert result.error is not None
    assert result.error.code == "E_TOOL_TIMEOUT"
    assert not runs(pid_in(mark))


def test_validation_takes_isolated_tools_as_any_other() -> None:
    _, findings = inspect_bundle(ISOLATION_BUNDLE)
    assert {finding.resource for finding in findings if finding.level == "error"} == {
        "Tool/broken",
        "Tool/apart",
    }
    assert [finding.message for finding in findings if finding.resource == "Tool/apart"] == [
        "the entry has no handler 'missing'"
    ]


def test_child_starts_without_broker_and_yaml() -> None:
    names = "{name.partition('.')[0] for name in sys.modules}"
    program = f"import sys, workers.processes.isolated_child; print(*{names})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "pydantic" in loaded
    assert loaded & {"celery", "kombu", "redis", "structlog", "yaml", "jsonschema_rs"} == set()
