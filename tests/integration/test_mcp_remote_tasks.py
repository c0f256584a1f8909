"""MCP tools whose server answers with tasks: workers of one stack, and ``goondan mcp-server`` of another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_config.keys import Keys
from goondan_tasks.client import PendingCall
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, serving
from tests.integration.results import code_of
from tests.waiting import wait_until
from workers.mcp.tools import full_names

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """The stack that calls, and the one behind the MCP server."""

    near: LocalStack
    far: LocalStack

    def begin(self, tool: str, args: Any) -> tuple[PendingCall, str]:
        """Call a tool of the server; return the call once it is pending, and the id of the server's task."""
        call = self.near.client.submit("clerk", name_of(tool), args)
        interim = call.result(PATIENCE)
        assert interim.status == "pending", interim
        assert interim.output["server"] == "far"
        assert interim.handle == f"mcp-task:far:{interim.output['taskId']}"
        return call, interim.output["taskId"]

    def is_asked(self, call: PendingCall) -> Callable[[], bool]:
        """Return what says whether a worker has asked about the task of a call."""
        return lambda: bool(self.near.client._redis.exists(Keys().mcp_task(call.id)))


def name_of(tool: str, server: str = "far") -> str:
    """Return the name of a server's tool here."""
    [name] = full_names(server, [tool])
    return name


def clerk_bundle(place: Path, url: str) -> Path:
    """Write a bundle whose agent has the tools of a server."""
    servers = {"far": {"url": url}, "plain": {"url": url, "tasks": False}}
    agent = {"extensions": [{"ref": "Extension/mcp", "config": {"servers": servers, "startSeconds": 40}}]}
    documents = [
        {"kind": "Package", "spec": {"version": "1.0.0"}},
        {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": agent},
        {"kind": "Swarm", "spec": {"agents": [{"ref": "Agent/clerk"}], "entryAgent": "Agent/clerk"}},
    ]
    place.mkdir()
    common = {"apiVersion": "goondan.ai/v1", "metadata": {"name": "office"}}
    text = yaml.safe_dump_all({**common, **document} for document in documents)
    (place / "goondan.yaml").write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with LocalStack(PENDING_BUNDLE, agents=["builder"]) as far:
        env = environment(redis_url=far.redis_url)
        with serving("mcp-server", "--agent", "builder", "--http", env=env) as server:
            bundle = clerk_bundle(tmp_path_factory.mktemp("near") / "bundle", server.url)
            with LocalStack(bundle, concurrency=1) as near:
                yield Pair(near, far)


def ended(call: PendingCall) -> ToolCallResult:
    """Return the final result."""
    return call.result(PATIENCE, wait_pending=True)


def test_task_holds_no_slot_and_its_result_ends_call(pair: Pair, tmp_path: Path) -> None:
    until = tmp_path / "until"

    call, task = pair.begin("jobs__linger", {"until": str(until), "ends": True})
    other = pair.near.client.call("clerk", name_of("guarded__look"), {}, timeout=PATIENCE)
    until.touch()

    assert (other.status, other.output) == ("ok", "gold")
    assert ended(call).output == "done here"
    assert pair.far.client.record(task).outcome == "ok"


def test_error_of_tasks_tool_is_calls_error(pair: Pair) -> None:
    call, task = pair.begin("guarded__wipe", {"disk": "sda"})
    pair.far.client.deny(task, reason="in use")

    result = ended(call)

    assert result.error is not None
    assert result.error.code == "E_TOOL"
    assert "in use" in result.error.message


def test_task_that_server_cancels_fails_call(pair: Pair) -> None:
    call, task = pair.begin("jobs__begin", {})
    pair.far.client.cancel(task)

    result = ended(call)

    assert result.error is not None
    assert result.error.code == "E_MCP"
    assert "'far' has cancelled the task" in result.error.message


def test_cancelled_call_cancels_its_task(pair: Pair) -> None:
    call, task = pair.begin("jobs__begin", {})
    wait_until(pair.is_asked(call), PATIENCE)
    call.cancel()

    wait_until(lambda: pair.far.client.record(task).is_cancelled, PATIENCE)
    assert code_of(ended(call)) == "E_TOOL_CANCELLED"


def test_server_with_unwanted_tasks_answers_with_result(pair: Pair, tmp_path: Path) -> None:
    until = tmp_path / "until"
    args = {"until": str(until), "ends": True}
    call = pair.near.client.submit("clerk", name_of("jobs__linger", "plain"), args)
    wait_until(lambda: call.status() == "running", PATIENCE)
    until.touch()

    assert call.result(PATIENCE).output == "done here"
