"""Pending calls that are completed over HTTP and on the command line, and approvals."""

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan, serving
from tests.integration.mcp_doors import Doors
from tests.unit.goondan_tasks.cli.invoke import Outcome
from tests.waiting import wait_until

PATIENCE = 60
#: where the world is told to go; a proxy would lead from there to the server
PUBLIC_URL = "https://shop.example/goondan"

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: shipper}
spec: {tools: [Tool/build]}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {name: build}
spec:
  entry: ./build.py
  exports:
    - {name: start, parameters: {type: object}}
    - {name: early, parameters: {type: object}}
    - {name: release, parameters: {type: object}, requiresApproval: true}
"""

TOOL = """\
import time
from pathlib import Path

def start(ctx, input):
    return ctx.pending(input.get("handle", "build-1"), {"address": ctx.callback_url})

def early(ctx, input):
    place = Path(input["place"])
    (place / "address.part").write_text(ctx.callback_url)
    (place / "address.part").rename(place / "address")
    end = time.monotonic() + 60
    while not (place / "guest").exists() and time.monotonic() < end:
        time.sleep(0.02)
    return ctx.pending("build-1")

def release(ctx, input):
    return {"released": input["version"]}

handlers = {"start": start, "early": early, "release": release}
"""


@dataclass(frozen=True, slots=True)
class Yard:
    """A worker, and a server of callbacks."""

    stack: LocalStack
    url: str
    log: Path

    @property
    def client(self) -> Client:
        return self.stack.client

    def address(self, public: str) -> str:
        """Return where the server is reached to which a public address leads."""
        assert public.startswith(f"{PUBLIC_URL}/callbacks/")
        return public.replace(f"{PUBLIC_URL}/callbacks", self.url)

    def start(self) -> tuple[PendingCall, str]:
        """Start a build; return its call and where it is completed."""
        call = self.client.submit("shipper", "build__start")
        return call, self.address(call.result(PATIENCE).output["address"])

    def goondan(self, *arguments: str) -> Outcome:
        """Run a command."""
        return goondan(*arguments, env=environment(redis_url=self.stack.redis_url))


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("yard")
    (folder / "goondan.yaml").write_text(BUNDLE, "utf-8")
    (folder / "build.py").write_text(TOOL, "utf-8")
    log = folder / "callbacks.log"
    with LocalStack(folder, environment={"GOONDAN_PUBLIC_URL": PUBLIC_URL}) as stack, log.open("w") as errors:
        env = environment(redis_url=stack.redis_url, max_output_bytes=10_000, log_level="debug")
        with serving("callbacks", "serve", env=env, errors=errors) as server:
            yield Yard(stack, server.url, log)


def post(address: str, body: object) -> tuple[int, str | None]:
    """Post to an address; return the status and the code of the error, if there is one."""
    answer = httpx2.post(address, json=body, timeout=PATIENCE)
    return answer.status_code, answer.json().get("error", {}).get("code")


def test_posted_output_completes_call(yard: Yard) -> None:
    call, address = yard.start()

    assert call.status() == "pending"
    assert post(address, {"output": {"image": "shop:2"}}) == (200, None)

    result = call.result(PATIENCE, wait_pending=True)
    assert (result.status, result.output) == ("ok", {"image": "shop:2"})


def test_call_is_ended_with_error_that_is_posted(yard: Yard) -> None:
    call, address = yard.start()

    assert post(address, {"error": {"code": "E_DISK", "message": "disk full"}}) == (200, None)

    error = call.result(PATIENCE, wait_pending=True).error
    assert error is not None
    assert (error.code, error.message) == ("E_DISK", "disk full")


def test_of_many_at_once_exactly_one_completes_call(yard: Yard) -> None:
    call, address = yard.start()

    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda number: post(address, {"output": number}), range(8)))

    assert sorted(answers) == [(200, None)] + [(409, "E_CALL_CLOSED")] * 7
    assert call.result(PATIENCE, wait_pending=True).output == answers.index((200, None))


def test_address_works_before_handler_has_returned(yard: Yard, tmp_path: Path) -> None:
    call = yard.client.submit("shipper", "build__early", {"place": str(tmp_path)})
    wait_until((tmp_path / "address").exists, PATIENCE)
    address = yard.address((tmp_path / "address").read_text())

    assert post(address, {"output": "quick"}) == (200, None)
    assert post(address, {"output": "again"}) == (409, "E_CALL_CLOSED")
    (tmp_path / "guest").touch()

    assert call.result(PATIENCE, wait_pending=True).output == "quick"


def test_two_calls_with_same_handle_stay_apart(yard: Yard) -> None:
    (one, its_address), (other, _) = yard.start(), yard.start()

    assert post(its_address, {"output": 1}) == (200, None)

    assert one.result(PATIENCE, wait_pending=True).output == 1
    assert other.status() == "pending"


def test_without_token_nothing_is_completed_and_nothing_learnt(yard: Yard) -> None:
    call, address = yard.start()
    _, other_address = yard.start()
    place, _, token = address.rpartition("/")
    other_token = other_address.rpartition("/")[2]

    wrong = [other_token, token[:-1], token + "A", "x", "한", "%00", "x" * 50_000]
    said = [httpx2.post(f"{place}/{one}", json={"output": 1}).json() for one in wrong]
    unknown = httpx2.post(f"{yard.url}/no-such-call/{token}", json={"output": 1}).json()

    assert [answer["error"]["code"] for answer in [*said, unknown]] == ["E_CALL_NOT_FOUND"] * 8
    assert call.status() == "pending"


def test_invalid_completion_leaves_call_unchanged(yard: Yard) -> None:
    call, address = yard.start()

    assert httpx2.get(address).status_code == 405
    assert httpx2.post(address, content=b"output=1").status_code == 415
    assert post(address, {"outptu": 1})[0] == 400
    assert post(address, {"error": {"text": "no message"}}) == (400, "E_TOOL_INVALID_ARGS")
    assert post(address, {"output": "x" * 11_000}) == (413, "E_PAYLOAD_TOO_LARGE")
    assert post(address, {"output": "x" * 1_000_000}) == (413, "E_PAYLOAD_TOO_LARGE")
    assert call.status() == "pending"


def test_token_is_never_logged(yard: Yard) -> None:
    _, address = yard.start()
    token = address.rpartition("/")[2]

    post(address, {"output": 1})
    post(address, {"output": 2})
    httpx2.get(address)

    assert token not in yard.log.read_text()


def test_command_line_completes_call_once(yard: Yard) -> None:
    call, address = yard.start()

    first = yard.goondan("resolve", call.id[:8], '{"image": "shop:3"}')
    second = yard.goondan("resolve", call.id, "4", "--json")

    assert (first.exit_code, first.stdout) == (0, "build__start of shipper: completed\n")
    assert (second.exit_code, second.document["error"]["code"]) == (2, "E_CALL_CLOSED")
    assert call.result(PATIENCE, wait_pending=True).output == {"image": "shop:3"}
    assert post(address, {"output": 5}) == (409, "E_CALL_CLOSED")


def test_command_line_ends_call_with_error(yard: Yard) -> None:
    call, _ = yard.start()

    assert yard.goondan("resolve", call.id, "--error", "no disk").exit_code == 0

    error = call.result(PATIENCE, wait_pending=True).error
    assert error is not None
    assert (error.code, error.message) == ("E_TOOL", "no disk")


def test_command_line_approves_call(yard: Yard) -> None:
    call = yard.client.submit("shipper", "build__release", {"version": 7})
    assert call.result(PATIENCE).status == "pending"

    [listed] = yard.goondan("approvals", "list", "--json").document
    completed = yard.goondan("resolve", call.id, "1", "--json")
    approved = yard.goondan("approvals", "approve", listed["id"])

    assert (listed["id"], listed["args"]) == (call.id, {"version": 7})
    assert (completed.exit_code, completed.document["error"]["code"]) == (2, "E_CALL_NOT_PENDING")
    assert approved.exit_code == 0
    assert call.result(PATIENCE, wait_pending=True).output == {"released": 7}
    assert yard.goondan("approvals", "list", "--json").document == []
    assert yard.goondan("approvals", "approve", call.id).exit_code == 2


def test_mcp_client_waits_until_call_is_approved(yard: Yard) -> None:
    async def use() -> object:
        async with Doors(yard.stack, "", "shipper").client("stdio", "auto") as client:
            call = asyncio.create_task(client.call_tool("build__release", {"version": 9}))
            await asyncio.to_thread(wait_until, yard.client.approvals, PATIENCE)
            yard.client.approve(yard.client.approvals()[0].id)
            return (await call).structured_content

    assert asyncio.run(use()) == {"released": 9}


def test_command_line_denies_call(yard: Yard) -> None:
    call = yard.client.submit("shipper", "build__release", {"version": 8})
    assert call.result(PATIENCE).status == "pending"

    yard.goondan("approvals", "deny", call.id, "--reason", "not on a Friday", "--by", "ops")

    error = call.result(PATIENCE, wait_pending=True).error
    assert error is not None
    assert error.code == "E_APPROVAL_DENIED"
    assert "not on a Friday" in error.message
    assert "ops" in error.message


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_callback_server_ends_cleanly_on_signal(yard: Yard, number: signal.Signals) -> None:
    env = environment(redis_url=yard.stack.redis_url)
    with serving("callbacks", "serve", env=env) as server:
        assert post(f"{server.url}/no-such-call/x", {"output": 1})[0] == 404

        server.process.send_signal(number)

        assert server.process.wait(PATIENCE) == 0


def test_reason_why_callbacks_cannot_be_served_is_shown(yard: Yard) -> None:
    away = environment(redis_url="redis://127.0.0.1:1/0", connect_timeout_seconds=0)
    taken = yard.url.split(":")[2].partition("/")[0]

    assert goondan("callbacks", "serve", env=away).exit_code == 5
    done = yard.goondan("callbacks", "serve", "--port", taken)
    assert (done.exit_code, "in use" in done.stderr) == (2, True)
    assert yard.goondan("callbacks", "stop").exit_code == 2
