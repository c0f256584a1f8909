"""The apps of docs/how-to/in-your-web-app.md run: Starlette, forked servers, and a task that is run again."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.docs.pages import page
from tests.waiting import wait_until

PATIENCE = 60.0
BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: site }
spec:
  entry: tools/site.py
  exports: [{ name: deploy, requiresApproval: true, parameters: { type: object } }]
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { entry: agents/coder.py, tools: [Tool/site] }
"""
TOOL = 'handlers = {"deploy": lambda ctx, input: {"deployed": input["version"]}}\n'
AGENT = """\
from pathlib import Path


async def handle(ctx, event):
    with Path(ctx.workdir, "asked").open("a") as log:
        print(event.input, file=log)
    if event.input == "fail":
        raise ValueError("no idea")
    return f"re: {event.input}"
"""
#: a server whose parent has used the client before it forks, and uses it again
FORKING = """
import os, sys
from agents import client

def ask(name):
    return client.request("coder", name, instance_key=name, timeout=60).response

assert ask("parent") == "re: parent"
early = client.request("coder", "early", instance_key="early", is_async=True)
children = []
for number in range(3):
    child = os.fork()
    if not child:
        try:
            ok = client.pending(early.id).result(60).output == "re: early"
            ok = ok and all(ask(f"child-{number}") == f"re: child-{number}" for _ in range(3))
        finally:
            os._exit(0 if ok else 1)
    children.append(child)
assert ask("parent again") == "re: parent again"
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def block(title: str) -> str:
    [found] = [one for one in page("docs/how-to/in-your-web-app.md").blocks() if one.title == title]
    return found.text


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("desk")
    for name, text in {"goondan.yaml": BUNDLE, "tools/site.py": TOOL, "agents/coder.py": AGENT}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    with LocalStack(folder) as stack:
        yield stack


@pytest.fixture
def http(stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("GOONDAN_REDIS_URL", stack.redis_url)
    (tmp_path / "app.py").write_text(block("app.py"), encoding="utf-8")
    with TestClient(runpy.run_path(str(tmp_path / "app.py"))["app"]) as http:
        yield http


def test_app_returns_answer_or_names_error(http: TestClient) -> None:
    answered = http.post("/ask", json={"text": "hello", "chat": "ann"})
    refused = http.post("/ask", json={"text": "fail", "chat": "ann"})

    assert (answered.status_code, answered.json()) == (200, {"answer": "re: hello"})
    assert (refused.status_code, refused.json()["code"]) == (502, "E_AGENT_FAILED")


def test_app_streams_turn_as_server_sent_events(http: TestClient) -> None:
    text = http.get("/stream", params={"text": "hello", "chat": "bob"}).text
    events = [part.split("\n") for part in text.strip().split("\n\n")]

    assert events[0][0] == "event: accepted"
    assert events[-1][0] == "event: end"
    assert json.loads(events[-1][1].removeprefix("data: "))["result"]["response"] == "re: hello"


def test_stream_of_failing_turn_ends_with_error(http: TestClient) -> None:
    last = http.get("/stream", params={"text": "fail", "chat": "bob"}).text.strip().split("\n\n")[-1]

    assert last.startswith("event: failed\n")
    assert json.loads(last.partition("data: ")[2])["code"] == "E_AGENT_FAILED"


def test_app_approves_call_and_denies_another(http: TestClient, stack: LocalStack) -> None:
    calls = [stack.client.submit("coder", "site__deploy", {"version": number}) for number in (1, 2)]
    assert [call.result(PATIENCE).status for call in calls] == ["pending", "pending"]

    assert {one["id"] for one in http.get("/approvals").json()} == {call.id for call in calls}
    approved = http.post(f"/approvals/{calls[0].id}", json={"approve": True, "by": "ann"})
    denied = http.post(f"/approvals/{calls[1].id}", json={"approve": False, "by": "ann"})

    assert (approved.status_code, denied.status_code) == (204, 204)
    results = [call.result(PATIENCE, wait_pending=True) for call in calls]
    assert results[0].output == {"deployed": 1}
    assert results[1].error is not None
    assert results[1].error.code == "E_APPROVAL_DENIED"
    again = http.post(f"/approvals/{calls[1].id}", json={"approve": True, "by": "ann"})
    unknown = http.post("/approvals/nothing", json={"approve": True, "by": "ann"})
    assert (again.status_code, unknown.status_code) == (409, 404)


def run(stack: LocalStack, folder: Path, program: str) -> "subprocess.CompletedProcess[str]":
    environment = stack.client.settings.environment(redis_url=stack.redis_url)
    command = [sys.executable, "-W", "ignore", "-c", program]
    return subprocess.run(
        command, env=environment, cwd=folder, timeout=120, capture_output=True, text=True, check=False
    )


def test_client_used_before_fork_works_in_every_process(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(block("agents.py"), encoding="utf-8")

    ended = run(stack, tmp_path, FORKING)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_view_finds_call_submitted_by_another_process(
    stack: LocalStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("agents.py", "views.py"):
        (tmp_path / name).write_text(block(name), encoding="utf-8")
    begun = run(stack, tmp_path, "from views import begin; print(begin('later'))")
    call_id = begun.stdout.strip()
    looking = f"from views import look; print(look({call_id!r}))"

    wait_until(lambda: "re: later" in run(stack, tmp_path, looking).stdout, PATIENCE)


def test_task_run_again_makes_agent_work_once(stack: LocalStack, tmp_path: Path) -> None:
    client: Client = stack.client
    answers = [
        client.request("coder", "order 7", event_id="review-7", instance_key="orders", timeout=PATIENCE)
        for _ in range(2)
    ]

    assert [answer.response for answer in answers] == ["re: order 7"] * 2
    [instance] = [one for one in client.instances("coder") if one.instance_key == "orders"]
    asked = list(Path(stack.state_root).rglob("orders/workspace/asked"))
    assert [one.read_text("utf-8") for one in asked] == ["order 7\n"], instance
