"""The examples of the older documents run in Python (002 §4.2, §6.3, §7.3, §11.1, §11.2)."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.authoring.changesets_api import SwarmBundleApi
from goondan_tasks.changesets.policy import FOLDER, Principal
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.revisions.active import ActiveRevision
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.workers.v1.gallery import AGENT, V1_PROFILE_BUNDLE, gallery
from workers.extensions.events import EventListeners
from workers.revisions.bundle_changes import AgentBundle
from workers.testing import run_tool


def run(tool: str, args: Any, state_root: Path) -> ToolCallResult:
    return run_tool(V1_PROFILE_BUNDLE, AGENT, tool, args, state_root=state_root)


class Api(BaseHTTPRequestHandler):
    """Knows one page."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/known" else 404)
        self.end_headers()
        self.wfile.write(b'{"known": true}')

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_calculator_adds_and_multiplies(tmp_path: Path) -> None:
    added = run("calc.add", {"a": 1, "b": 2}, tmp_path)
    multiplied = run("calc.multiply", {"a": 6, "b": 7}, tmp_path)
    refused = run("calc.add", {"a": "one", "b": 2}, tmp_path)

    assert added.output == {"result": 3, "expression": "1 + 2 = 3"}
    assert multiplied.output == {"result": 42, "expression": "6 \N{MULTIPLICATION SIGN} 7 = 42"}
    assert refused.error is not None
    assert refused.error.code == "E_TOOL_INVALID_ARGS"


def test_build_that_has_only_begun_is_pending(tmp_path: Path) -> None:
    result = run("build.start", {"project": "12345"}, tmp_path)

    assert (result.status, result.handle) == ("pending", "build-12345")
    assert result.output == {"message": "빌드가 시작되었습니다. 완료되면 알려드리겠습니다."}


def test_api_refusal_is_error_within_tools_limit(tmp_path: Path, api: str) -> None:
    assert run("api.call", {"url": f"{api}/known"}, tmp_path).output == {"known": True}

    failed = run("api.call", {"url": f"{api}/unknown"}, tmp_path)
    assert failed.error is not None
    assert (failed.error.name, failed.error.message) == ("RuntimeError", "API 요청 실패: 404 Not Found")

    cut = run("api.call", {"url": f"x{'y' * 100}"}, tmp_path)
    assert cut.error is not None
    assert len(cut.error.message) == 60
    assert cut.output == {
        "status": "error",
        "error": {"message": cut.error.message, "name": "ValueError", "code": "E_TOOL"},
    }


@pytest.mark.requirement("v1.file-tools")
def test_file_tools_read_and_write_from_workdir(tmp_path: Path) -> None:
    written = run("file.write", {"path": "notes/a.txt", "content": "하나 둘"}, tmp_path).output
    whole = run("file.read", {"path": "notes/a.txt"}, tmp_path).output
    cut = run("file.read", {"path": written["path"], "maxBytes": 2}, tmp_path).output
    missing = run("file.read", {"path": "notes"}, tmp_path)

    place = Path(written["path"])
    assert place.is_relative_to(tmp_path)
    assert place.name == "a.txt"
    assert written == {"path": str(place), "size": 10, "written": True}
    assert whole == {"path": str(place), "size": 10, "truncated": False, "content": "하나 둘"}
    assert (cut["truncated"], cut["content"]) == (True, "하나")
    assert missing.error is not None
    assert missing.error.message == f"{place.parent}는 파일이 아닙니다."


def no_listener(_: object) -> Any:
    raise AssertionError("no listener is async")


def test_swarm_bundle_tools_open_and_commit_changeset(tmp_path: Path) -> None:
    bundle: GitBundle = make_bundle(tmp_path / "repo")
    asked: list[ToolCall] = []

    def swarm_bundle_for(call: ToolCall) -> SwarmBundleApi:
        asked.append(call)
        principal = Principal(tmp_path / FOLDER, agent=call.agent_name, instance_key=call.instance_key)
        record = ActiveRevision(fakeredis.FakeRedis(), Keys(), "den")
        return AgentBundle(bundle.changesets(), principal, record, EventListeners(no_listener))

    with gallery(tmp_path, swarm_bundle_for=swarm_bundle_for) as here:
        opened = here.call("swarmBundle.openChangeset", {"reason": "Say more"}).output
        Path(opened["workdir"], "prompts/coder.md").write_text("more\n", encoding="utf-8")
        committed = here.call("swarmBundle.commitChangeset", {"changesetId": opened["changesetId"]}).output

    assert committed["status"] == "ok"
    assert committed["newRef"] == f"git:{bundle.head}"
    assert list(committed["summary"]["filesChanged"]) == ["prompts/coder.md"]
    assert [call.tool_name for call in asked] == ["swarmBundle.openChangeset", "swarmBundle.commitChangeset"]


def test_without_worker_there_is_no_bundle_to_change(tmp_path: Path) -> None:
    result = run("swarmBundle.openChangeset", {}, tmp_path)

    assert result.error is not None
    assert result.error.message == "The bundle cannot be changed here."
    assert result.error.suggestion == "It must be in a git repository, and a worker must run the call."
