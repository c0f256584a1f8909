"""MCP servers behind real workers: two from PyPI, and one that does everything badly."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Worker
from tests.integration.goondan_process import environment, goondan
from tests.integration.results import code_of
from tests.processes import runs, with_environment
from tests.waiting import wait_until

MOODY = Path(__file__).parent.parent / "moody_server.py"
PATIENCE = 60
#: a server that has stopped answering may be noticed after ten seconds, and ended within eight
RETURN_SECONDS = 90
MARK = "SERVER_OF_A_TEST"
HEALTHY = {"time__get_current_time": {"timezone": "UTC"}, "moody__echo": {"text": "x"}}


def program(name: str, *args: str, **fields: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": list(args), "env": {MARK: name}, **fields}


def write_bundle(place: Path, repository: Path) -> Path:
    servers = {
        "time": program("time", "-m", "mcp_server_time", "--local-timezone", "UTC"),
        "git": program("git", "-m", "mcp_server_git", "--repository", str(repository)),
        "moody": program("moody", str(MOODY), str(place / "lives")),
        "absent": {"command": "/no/such/server"},
    }
    agent = {"extensions": [{"ref": "Extension/mcp", "config": {"servers": servers, "startSeconds": 40}}]}
    documents = [
        {"kind": "Package", "spec": {"version": "1.0.0"}},
        {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": agent},
        {"kind": "Swarm", "spec": {"agents": [{"ref": "Agent/clerk"}], "entryAgent": "Agent/clerk"}},
    ]
    place.mkdir()
    (place / "goondan.yaml").write_text(
        yaml.safe_dump_all(
            {"apiVersion": "goondan.ai/v1", "metadata": {"name": "office"}, **document}
            for document in documents
        ),
        encoding="utf-8",
    )
    return place


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("repository")
    author = ["-c", "user.name=Clerk", "-c", "user.email=clerk@example.com"]
    for words in (["init", "-q"], [*author, "commit", "-q", "--allow-empty", "-m", "Open the office"]):
        subprocess.run(["git", *words], cwd=place, check=True)
    return place


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    return write_bundle(tmp_path_factory.mktemp("office") / "bundle", repository)


@pytest.fixture(scope="module")
def stack(office: Path) -> Iterator[LocalStack]:
    with LocalStack(office, environment={"GOONDAN_LEASE_SECONDS": "4"}) as stack:
        yield stack


@pytest.fixture(autouse=True)
def worker(stack: LocalStack) -> Iterator[Worker]:
    """Return the worker; each test leaves one that lives, with its servers in good health."""
    [worker] = living(stack)
    yield worker
    [_] = living(stack)  # nobody starts another one but the tests that end it
    wait_until(lambda: all(answers(stack.client, tool) for tool in HEALTHY), RETURN_SECONDS)


def living(stack: LocalStack) -> list[Worker]:
    return [worker for worker in stack.workers if worker.poll() is None]


def answers(client: Client, tool: str) -> bool:
    return client.call("clerk", tool, HEALTHY[tool], timeout=PATIENCE).status == "ok"


def begin(client: Client, tool: str, args: Any = None, **fields: Any) -> PendingCall:
    """Submit a call and wait until it runs, or has run: it may be limited."""
    call = client.submit("clerk", tool, args or {}, **fields)
    wait_until(lambda: call.status() != "queued", PATIENCE)
    return call


def servers(name: str) -> list[int]:
    """List a server's process, and its guard."""
    return with_environment(f"{MARK}={name}")


def server(name: str) -> int:
    [pid] = [
        pid for pid in servers(name) if b"process_guard" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return pid


@pytest.mark.requirement("catalog.item.source-mcp")
def test_all_servers_tools_are_cataloged_and_answer(stack: LocalStack, repository: Path) -> None:
    item = next(item for item in stack.client.catalog("clerk") if item["name"] == "time__convert_time")
    now = stack.client.call("clerk", "time__get_current_time", {"timezone": "Asia/Seoul"}, timeout=PATIENCE)
    log = stack.client.call("clerk", "git__git_log", {"repo_path": str(repository)}, timeout=PATIENCE)

    assert item["source"] == {
        "type": "mcp",
        "name": "mcp",
        "mcp": {"extensionName": "mcp", "serverName": "time"},
    }
    assert "source_timezone" in item["parameters"]["properties"]
    assert now.status == "ok"
    assert "Asia/Seoul" in json.dumps(now.output)
    assert log.status == "ok"
    assert "Open the office" in json.dumps(log.output)


def test_arguments_follow_server_schema_and_server_errors_are_results(stack: LocalStack) -> None:
    wrong = stack.client.call("clerk", "time__get_current_time", {}, timeout=PATIENCE)
    unknown = stack.client.call("clerk", "time__get_current_time", {"timezone": "Mars/X"}, timeout=PATIENCE)

    assert code_of(wrong) == "E_TOOL_INVALID_ARGS"
    assert code_of(unknown) == "E_TOOL"
    assert unknown.error
    assert "Mars/X" in unknown.error.message


def test_killed_server_fails_only_its_call_and_returns(stack: LocalStack) -> None:
    call = begin(stack.client, "moody__hang")
    os.kill(server("moody"), signal.SIGKILL)
    result = call.result(PATIENCE)

    assert code_of(result) == "E_MCP"
    assert result.error
    assert "MCP server 'moody' was lost during the call: it was ended by SIGKILL" in result.error.message
    assert answers(stack.client, "time__get_current_time")
    wait_until(lambda: answers(stack.client, "moody__echo"), RETURN_SECONDS)


def test_server_from_elsewhere_that_is_killed_comes_back(stack: LocalStack) -> None:
    killed = server("time")
    os.kill(killed, signal.SIGKILL)

    wait_until(lambda: not runs(killed))
    wait_until(lambda: answers(stack.client, "time__get_current_time"), RETURN_SECONDS)
    assert server("time") != killed


def test_server_that_never_answers_delays_only_its_caller(stack: LocalStack) -> None:
    call = begin(stack.client, "moody__freeze", timeout_seconds=2)
    frozen = server("moody")
    assert answers(stack.client, "time__get_current_time")

    assert code_of(call.result(30)) == "E_TOOL_TIMEOUT"
    wait_until(lambda: not runs(frozen), RETURN_SECONDS)
    wait_until(lambda: answers(stack.client, "moody__echo"), RETURN_SECONDS)


def test_too_deep_answer_fails_at_once_but_shallower_passes(
    stack: LocalStack,
) -> None:
    deep = stack.client.call("clerk", "moody__nest", {"depth": 400}, timeout=PATIENCE)
    shallow = stack.client.call("clerk", "moody__nest", {"depth": 150}, timeout=PATIENCE)

    assert code_of(deep) == "E_MCP"
    assert (shallow.status, list(shallow.output)) == ("ok", ['"id": 7, '])


def test_progress_and_cancel_pass_through(stack: LocalStack) -> None:
    counted = stack.client.submit("clerk", "moody__count", {"to": 3})
    assert counted.result(PATIENCE).output == "3"
    progress = counted.progress()
    assert progress
    assert (progress.done, progress.total, progress.message) == (3, 3, "at 3")
    [given_up] = [name for name in names(stack.client) if "given_up" in name]

    def is_told() -> bool:
        """Cancel a call, which may happen before the server has heard of it; say whether one was told."""
        hanging = begin(stack.client, "moody__hang")
        hanging.cancel()
        assert code_of(hanging.result(PATIENCE)) == "E_TOOL_CANCELLED"
        return "caller cancelled" in stack.client.call("clerk", given_up, timeout=PATIENCE).output

    wait_until(is_told, PATIENCE)


def test_list_that_changes_is_seen_by_producers(stack: LocalStack) -> None:
    assert stack.client.call("clerk", "moody__grow", timeout=PATIENCE).status == "ok"
    wait_until(lambda: "moody__late" in names(stack.client), PATIENCE)
    assert stack.client.call("clerk", "moody__shrink", timeout=PATIENCE).status == "ok"
    wait_until(lambda: "moody__late" not in names(stack.client), PATIENCE)


def names(client: Client) -> list[str]:
    return [item["name"] for item in client.catalog("clerk")]


def test_doctor_tells_how_each_server_fares(stack: LocalStack) -> None:
    def checks() -> dict[str, str]:
        told = goondan("doctor", "--json", env=environment(redis_url=stack.redis_url)).document
        return {check["name"]: f"{check['level']}: {check['message']}" for check in told["checks"]}

    wait_until(lambda: "MCP server absent of clerk" in checks(), RETURN_SECONDS, show=checks)

    told = checks()
    assert re.fullmatch(r"ok: \d+ tools; never lost", told["MCP server git of clerk"])
    assert told["MCP server absent of clerk"].startswith("warning: down in ")
    assert (
        "'/no/such/server' cannot be started: No such file or directory" in told["MCP server absent of clerk"]
    )


def test_worker_death_reruns_repeatable_calls_only_leaving_no_process(
    stack: LocalStack, office: Path, worker: Worker
) -> None:
    (office / "lives.mood").unlink(missing_ok=True)
    child = stack.client.call("clerk", "moody__child", timeout=PATIENCE).output
    once, twice = begin(stack.client, "moody__hang"), begin(stack.client, "moody__ponder")
    wait_until((office / "lives.mood").exists)
    left = [pid for name in ("time", "git", "moody") for pid in servers(name)] + [int(child)]
    worker.kill()
    worker.wait()

    wait_until(lambda: not any(map(runs, left)))
    stack.start_worker()
    assert code_of(once.result(PATIENCE)) == "E_TOOL_OUTCOME_UNKNOWN"
    assert twice.result(PATIENCE).output == "so be it"


def test_stopping_worker_finishes_calls_and_leaves_no_server(stack: LocalStack, worker: Worker) -> None:
    call = begin(stack.client, "moody__nap", {"seconds": 2})
    left = [pid for name in ("time", "git", "moody") for pid in servers(name)]
    stack.stop_worker(worker)

    assert call.result(PATIENCE).output == "rested"
    assert not any(map(runs, left))
    stack.start_worker()
