"""The TypeScript client in Node, at the application with real workers and an agent that the test plays."""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from redis import Redis

from broker_config.connections import connect
from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.machine.process import url_of
from goondan_web.application import make_application
from goondan_web.doors.api import api_door
from goondan_web.server import served
from tests.docs.pages import ROOT, page
from tests.integration.openai_door import tell, text
from tests.javascript_runtimes import NAMES, runtime
from tests.node_packages import FOLDERS, node

PATIENCE = 60
SCENARIOS = FOLDERS / "client" / "scenarios.mts"
README = "clients/typescript/README.md"
#: what the README's example names, and what there is here
EXAMPLE = {
    '"@goondan/client"': f'"{ROOT}/clients/typescript/src/index.ts"',
    '"editor"': '"builder"',
    '"coder"': '"builder"',
    '"bash__exec"': '"guarded__look"',
}


@pytest.fixture(scope="module")
def url(client: Client) -> Iterator[str]:
    app = make_application([api_door(AsyncClient(client), client.settings)], client.settings, "127.0.0.1")
    with listening_socket("127.0.0.1", 0) as server, served(app, server):
        yield url_of(server)


@pytest.fixture
def redis(client: Client) -> Iterator[Redis]:
    with connect(client.settings.redis_url) as redis:
        yield redis


@pytest.fixture
def nowhere() -> str:
    """Return the address of a server that has ended."""
    with listening_socket("127.0.0.1", 0) as server:
        return url_of(server)


@pytest.fixture
def instance() -> str:
    return f"instance-{uuid.uuid4().hex[:8]}"


def started(*arguments: str, program: str | None = None) -> "subprocess.Popen[str]":
    """Start a program in Node, or in another one that runs TypeScript."""
    command = [program or node(), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def printed(program: "subprocess.Popen[str]") -> str:
    """Return what a program has printed when it has ended."""
    with program:
        try:
            stdout, stderr = program.communicate(timeout=PATIENCE)
        finally:
            program.kill()
    assert program.returncode == 0, stderr
    return stdout


def seen(program: "subprocess.Popen[str]") -> list[Any]:
    """Return what a scenario has seen when it has ended."""
    return [json.loads(line) for line in printed(program).splitlines()]


def scenario(name: str, url: str, argument: str = "") -> list[Any]:
    """Run a scenario, and return what it has seen."""
    return seen(started(str(SCENARIOS), name, url, argument))


def answered(client: Client, redis: Redis, instance: str) -> None:
    """Play a Turn of an agent: say something in pieces, and reply."""
    received = client.receive("builder", instance, timeout=PATIENCE)
    assert received is not None
    for piece in ("Built", "…\n", "이제"):
        tell(redis, received, text(piece))
    client.reply(received, {"said": received.event.input})


def test_calls_are_run_read_completed_and_cancelled(url: str) -> None:
    ended, resolved, failed, cancelled = scenario("calls", url)
    assert ended == [True, "gold", "gold"]
    assert resolved == {"n": 1}
    assert (failed["code"], failed["message"]) == ("E_OWN", "no")
    assert cancelled == "E_TOOL_CANCELLED"


@pytest.mark.parametrize("name", NAMES)
def test_turn_is_followed_live_and_again_from_event(
    name: str, url: str, client: Client, redis: Redis, instance: str
) -> None:
    program = started(str(SCENARIOS), "turn", url, instance, program=runtime(name).program)
    answered(client, redis, instance)
    first, live, rest, output = seen(program)
    assert first == "text"
    assert [event["type"] for event in live] == ["text", "text", "text", "end"]
    assert "".join(event.get("text", "") for event in live) == "Built…\n이제"
    assert rest == live[1:]
    assert output == live[-1]["result"]["response"] == {"said": "Build it."}


def test_stream_cut_before_last_event_resumes_where_it_ended(
    url: str, client: Client, redis: Redis, instance: str
) -> None:
    program = started(str(SCENARIOS), "brief", url, instance)
    answered(client, redis, instance)
    events, places = seen(program)
    assert "".join(event.get("text", "") for event in events) == "Built…\n이제"
    assert [event["type"] for event in events] == ["text", "text", "text", "end"]
    assert places == [None, *(event["cursor"] for event in events[:-1])]


def test_approvals_are_listed_and_decided(url: str, instance: str) -> None:
    listed, are_paged, wrong, approved, output, denied, late = scenario("approvals", url, instance)
    assert listed == [{"disk": "sda"}, {"disk": "sdb"}]
    assert are_paged
    assert (wrong["code"], wrong["status"]) == ("E_TOOL_INVALID_ARGS", 400)
    assert approved == ["ann", {"disk": "sda"}, {"disk": "sdc"}]
    assert output == {"wiped": "sdc"}
    assert denied["code"] == "E_APPROVAL_DENIED"
    assert "not today" in denied["message"]
    assert (late["code"], late["status"]) == ("E_CALL_CLOSED", 409)


def test_instances_are_listed_shown_and_deleted(url: str, instance: str) -> None:
    shown, removed, messages, dots, nameless = scenario("instances", f"{url}/v1/", instance)
    assert (shown, dots) == ([True, "builder"], "..")
    assert (removed, messages) == ([False], [])
    assert nameless == {"name": "TypeError"}


def test_errors_have_code_status_and_suggestion(url: str, nowhere: str) -> None:
    unknown, nobody, elsewhere, away, token = scenario("errors", url, nowhere)
    assert (unknown["code"], unknown["status"]) == ("E_CALL_NOT_FOUND", 404)
    assert unknown["suggestion"]
    assert unknown["helpUrl"].endswith("/E_CALL_NOT_FOUND")
    assert (nobody["code"], nobody["status"]) == ("E_AGENT_NOT_FOUND", 404)
    assert (elsewhere["code"], elsewhere["status"]) == ("E_NOT_FOUND", 404)
    assert (away["code"], "status" in away) == ("E_NO_ANSWER", False)
    assert "ECONNREFUSED" in away["message"]
    assert token == {"name": "TypeError"}


def test_abort_ends_waits_streams_and_pauses_but_not_call(url: str, nowhere: str) -> None:
    *timeouts, begin, status = scenario("abort", url, nowhere)
    assert timeouts == [{"name": "TimeoutError"}] * 3
    assert (begin, status) == ({"name": "AbortError"}, "done")


def test_server_silent_too_long_is_given_up(url: str) -> None:
    early, late, early_stream, late_stream = scenario("silent", url)
    assert early is early_stream is None
    assert [one["code"] for one in (late, late_stream)] == ["E_NO_ANSWER"] * 2
    assert ("80 s" in late["message"], "45 s" in late_stream["message"]) == (True, True)


def test_only_begin_with_lost_answer_is_resent_with_key(url: str, client: Client, instance: str) -> None:
    begun, lost, sent, ids, conflict = scenario("repeat", url, instance)
    assert begun == [3, 1, "scheduled"]
    assert len([one for one in client.calls(limit=1_000) if one.call.instance_key == instance]) == 2
    assert (lost["code"], sent) == ("E_NO_ANSWER", 1)
    assert ids == 1
    assert (conflict["code"], conflict["status"]) == ("E_TOOL_CALL_CONFLICT", 409)


def test_example_of_readme_runs(url: str, client: Client, redis: Redis, tmp_path: Path) -> None:
    [example] = [block.text for block in page(README).blocks() if block.language == "typescript"]
    for theirs, here in EXAMPLE.items():
        assert theirs in example
        example = example.replace(theirs, here)
    file = tmp_path / "example.mts"
    file.write_text(example, "utf-8")
    with mock.patch.dict(os.environ, GOONDAN_URL=url):
        program = started(str(file))
    answered(client, redis, "issue-42")
    assert printed(program).splitlines() == ["Built", "…", "", "이제", "{ said: 'hello agents' }", "gold"]
