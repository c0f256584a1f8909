"""One call without Redis: what a handler may use of its context."""

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from workers.testing import run_tool

CALLS_BUNDLE = Path(__file__).parents[2] / "bundles" / "calls"


def test_progress_is_checked_as_in_worker(tmp_path: Path) -> None:
    said = run_tool(CALLS_BUNDLE, "smith", "teller__errs", state_root=tmp_path).output
    assert len(said) == 9
    assert said[0] == "E_TOOL: progress: done must be a number from 0 to 2**53."


def test_tested_call_is_uncancelled_and_may_report_progress(tmp_path: Path) -> None:
    (tmp_path / "guest").touch()
    args = {"steps": 5, "place": str(tmp_path)}
    assert (
        run_tool(CALLS_BUNDLE, "smith", "teller__counts", args, state_root=tmp_path / "s").output == "counted"
    )
    told = run_tool(CALLS_BUNDLE, "smith", "echo__context", state_root=tmp_path / "s").output
    assert told["cancelled"] is False


TOOLS = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: lone }
spec: { tools: [Tool/here] }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: here }
spec:
  entry: ./here.py
  exports:
    - { name: plain, parameters: { type: object } }
    - { name: apart, parameters: { type: object }, isolation: process }
"""
HANDLER = """\
def look(ctx, input):
    ctx.logger.warning("looked", around=[1, 2])
    return {"runtime": ctx.runtime}


handlers = {"plain": look, "apart": look}
"""


@pytest.mark.requirement("context.runtime", "context.logger")
@pytest.mark.parametrize("export", ["plain", "apart"])
def test_tool_without_worker_has_logger_but_no_agents(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, export: str
) -> None:
    (tmp_path / "goondan.yaml").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "here.py").write_text(HANDLER, encoding="utf-8")
    monkeypatch.setenv("GOONDAN_LOG_FORMAT", "json")
    structlog.reset_defaults()  # what another test has configured would stay

    result = run_tool(tmp_path, "lone", f"here__{export}", tool_call_id="c-1", instance_key="i-1")

    assert result.output == {"runtime": None}
    errors = capfd.readouterr().err
    assert "Logging error" not in errors, errors
    [line] = [json.loads(text) for text in errors.splitlines() if "looked" in text]
    told = {name: line[name] for name in ("event", "level", "around", "agent", "instance", "tool")}
    assert told == {
        "event": "looked",
        "level": "warning",
        "around": [1, 2],
        "agent": "lone",
        "instance": "i-1",
        "tool": f"here__{export}",
    }
    assert (line["tool_call_id"], line["trace_id"]) == ("c-1", result.meta.trace_id)


FORGETFUL = """\
async def work(ctx, input):
    return {"done": True}


async def forgets(ctx, input):
    return work(ctx, input)


def nests(ctx, input):
    return {"all": [work(ctx, input), work(ctx, input)]}


def defers(ctx, input):
    return work(ctx, input)


async def streams(ctx, input):
    yield 1


def yields(ctx, input):
    yield 1


handlers = {"forgets": forgets, "nests": nests, "defers": defers, "streams": streams, "yields": yields}
"""


@pytest.mark.requirement("handler.returns-json")
@pytest.mark.parametrize("isolation", ["", ", isolation: process"])
def test_unfinished_work_fails_handler_without_python_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], isolation: str
) -> None:
    names = ("forgets", "nests", "defers", "streams", "yields")
    exports = ", ".join(f"{{ name: {name}, parameters: {{ type: object }}{isolation} }}" for name in names)
    text = f"{TOOLS.partition('  exports')[0]}  exports: [{exports}]\n"
    (tmp_path / "goondan.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "here.py").write_text(FORGETFUL, encoding="utf-8")

    results = {name: run_tool(tmp_path, "lone", f"here__{name}") for name in names}

    # what a plain handler returns may be a promise (004, ToolHandler)
    assert results.pop("defers").output == {"done": True}
    told = {name: (one.error.code, one.error.message) for name, one in results.items() if one.error}
    assert told == {
        name: ("E_TOOL_BAD_OUTPUT", f"here__{name} returned a value that is not JSON: {what}.")
        for name, what in {
            "forgets": "output is unfinished work (coroutine 'work')",
            "nests": "output.all[0] is unfinished work (coroutine 'work')",
            "streams": "output is unfinished work (async generator 'streams')",
            "yields": "output is unfinished work (generator 'yields')",
        }.items()
    }
    assert results["nests"].error is not None
    assert results["nests"].error.suggestion == "Write `await` where it is made, in an `async def` handler."
    gc.collect()
    assert "never awaited" not in capfd.readouterr().err


def test_misspelt_field_is_refused_as_client_does() -> None:
    fields = cast(Any, {"instance": "issue-42"})
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'instance'; did you mean 'instance_key'"
    ):
        run_tool(CALLS_BUNDLE, "smith", "echo__args", **fields)


def test_failed_calls_log_shows_no_local_variables(tmp_path: Path) -> None:
    code = (
        "import sys; from workers.testing import run_tool; "
        "run_tool(sys.argv[1], 'smith', 'odd__raises', {'kind': 'value', 'message': 'cold'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(CALLS_BUNDLE)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert done.stdout == ""
    assert done.stderr.count("ValueError: cold") == 1
    assert "locals" not in done.stderr
