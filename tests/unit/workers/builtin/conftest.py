"""Built-in tools as a worker calls them: arguments checked, handler run, result written as JSON."""

import asyncio
import functools
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import structlog
import yaml

import workers.builtin
from goondan_tasks.authoring.tool_api import JsonObject, ToolContext
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import assistant_message
from goondan_tasks.contract.schema import compile_schema
from tests.unit.workers.builtin.local_server import LocalServer
from workers.builtin.bash import handlers as bash
from workers.builtin.file_system import handlers as file_system
from workers.builtin.http_fetch import handlers as http_fetch
from workers.builtin.json_query import handlers as json_query
from workers.builtin.text_transform import handlers as text_transform
from workers.builtin.wait import handlers as wait
from workers.concurrency.watchdog import Watchdog
from workers.processes.programs import ProcessRunner
from workers.reporters import ProgressReporter

HANDLERS = {
    "bash": bash,
    "file-system": file_system,
    "http-fetch": http_fetch,
    "json-query": json_query,
    "text-transform": text_transform,
    "wait": wait,
}


class CallTool(Protocol):
    """Call a built-in tool by its full name."""

    def __call__(self, name: str, **args: Any) -> Any:
        """Return the handler's result."""


@functools.cache
def tool_resources() -> dict[str, JsonObject]:
    """Read every Tool of the package, by name."""
    root = Path(workers.builtin.__path__[0])
    documents = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in root.glob("*.yaml")]
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == "Tool"}


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """An instance's directory, with something beside it that must not be reached."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret")
    inside = tmp_path / "workdir"
    inside.mkdir()
    return inside


@pytest.fixture
def context(workdir: Path) -> ToolContext:
    return ToolContext(
        agent_name="coder",
        instance_key="issue-42",
        turn_id="turn-1",
        trace_id="0" * 32,
        tool_call_id="call_1",
        message=assistant_message("call_1", "t__e", {}, "step-1", "2026-02-01T10:00:00.000Z"),
        workdir=workdir,
        logger=structlog.get_logger(),
        run_process=ProcessRunner(workdir),
        progress=ProgressReporter(bytes, lambda report, answered: None, Watchdog().watch),
    )


@pytest.fixture
def call(context: ToolContext) -> CallTool:
    """Check the arguments, run the handler and take its result through JSON."""
    resources = tool_resources()

    def call_tool(name: str, **args: Any) -> Any:
        tool, _, export = name.partition("__")
        [declared] = [item for item in resources[tool]["spec"]["exports"] if item["name"] == export]
        if faults := compile_schema(declared["parameters"]).faults(args):
            raise ToolInputValidationError("; ".join(faults))
        result = HANDLERS[tool][export](context, args)
        if inspect.isawaitable(result):
            result = asyncio.run(_finish(result))
        return json.loads(json.dumps(result, allow_nan=False, ensure_ascii=False).encode())

    return call_tool


async def _finish(result: Any) -> Any:
    async with asyncio.timeout(30):
        return await result


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """An HTTP server on 127.0.0.1."""
    with LocalServer("127.0.0.1") as running:
        yield running


@pytest.fixture
def loopback_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the server's address, and no other one that is not public."""
    monkeypatch.setenv("GOONDAN_HTTP_ALLOW", "127.0.0.1")
