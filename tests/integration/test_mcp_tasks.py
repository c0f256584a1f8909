"""MCP Tasks at ``goondan mcp-server``: clients of the official SDK that declare the extension."""

import asyncio
import gc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    Implementation,
    Request,
)

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, serving
from tests.integration.mcp_doors import Door, Doors
from tests.integration.mcp_task_client import (
    ENDS,
    DetailedTask,
    Task,
    TaskParams,
    TasksExtension,
    begun,
    cancel,
    got,
    reached,
    respond,
    seen,
    unasked,
)

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"


@pytest.fixture(autouse=True)
def _left_open() -> Iterator[None]:
    """Collect the pipes that the SDK's clients leave open here, not amid any other test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def doors() -> Iterator[Doors]:
    with LocalStack(PENDING_BUNDLE, agents=["builder", "clerk"]) as stack:
        env = environment(redis_url=stack.redis_url)
        with serving("mcp-server", "--agent", "builder", "--http", env=env) as server:
            yield Doors(stack, server.url, agent="builder")


#: with a user who can be asked
ASKING: Any = {
    "extensions": [TasksExtension()],
    "elicitation_callback": unasked,
    "client_info": Implementation(name="odd\nclient", version="1"),
}


async def task_of(client: Client, tool: str, **args: Any) -> Task:
    """Call a tool and expect a task."""
    task = await begun(client, tool, args)
    assert isinstance(task, Task)
    return task


@pytest.mark.parametrize(("door", "other"), [("http", "stdio"), ("stdio", "http")])
def test_task_of_one_server_is_polled_at_another(
    doors: Doors, door: Door, other: Door, tmp_path: Path
) -> None:
    until = tmp_path / "until"

    async def use() -> tuple[Task, Any, Any, Any]:
        async with doors.client(door, "auto", **ASKING) as client:
            quick = await begun(client, "guarded__look", {})
            created = await task_of(client, "jobs__linger", until=str(until), ends=True)
        async with doors.client(other, "auto", **ASKING) as client:
            working = await seen(
                client, created.task_id, lambda task: "lingers" in (task.status_message or "")
            )
            until.touch()
            return created, quick, working, await reached(client, created.task_id, *ENDS)

    created, quick, working, ended = asyncio.run(use())

    assert isinstance(quick, CallToolResult)
    assert quick.content[0].model_dump()["text"] == "gold"
    assert (created.status, working.status, ended.status) == ("working", "working", "completed")
    assert working.status_message == "1/2 · lingers"
    assert ended.result["content"] == [{"type": "text", "text": "done here"}]
    assert created.created_at == ended.created_at <= ended.last_updated_at
    assert created.ttl_ms is not None
    assert created.ttl_ms >= 86_400_000
    assert doors.stack.client.record(created.task_id).outcome == "ok"


def test_client_approves_held_call_with_other_arguments(doors: Doors) -> None:
    async def use() -> Any:
        async with doors.client("http", "auto", **ASKING) as client:
            task = await task_of(client, "guarded__wipe", disk="sda")
            asked = await reached(client, task.task_id, "input_required")
            [key] = asked.input_requests
            for wrong in ("[1]", "{", '{"disk": 7}', 7):
                answer = {"action": "accept", "content": {"confirm": True, "arguments": wrong}}
                with pytest.raises(MCPError, match="arg"):
                    await respond(client, task.task_id, **{key: answer})
            content = {"confirm": True, "arguments": '{"disk": "sdb"}'}
            await respond(client, task.task_id, **{key: {"action": "accept", "content": content}})
            return await reached(client, task.task_id, *ENDS)

    ended = asyncio.run(use())
    assert "sdb" in ended.result["content"][0]["text"]
    record = doors.stack.client.record(ended.task_id)
    assert record.call.edited is not None
    assert (record.call.args, record.call.edited.asked) == ({"disk": "sdb"}, {"disk": "sda"})


def test_client_approves_and_denies_held_calls(doors: Doors) -> None:
    async def use() -> list[Any]:
        async with doors.client("http", "auto", **ASKING) as client:
            ends = []
            for answer in (
                {"action": "accept", "content": {"confirm": True}},
                {"action": "accept", "content": {"confirm": False, "reason": "in use"}},
                {"action": "decline"},
            ):
                task = await task_of(client, "guarded__wipe", disk="sda")
                asked = await reached(client, task.task_id, "input_required")
                [(key, request)] = asked.input_requests.items()
                assert request["method"] == "elicitation/create"
                assert '"disk":"sda"' in request["params"]["message"]
                with pytest.raises(MCPError, match="confirm"):
                    await respond(client, task.task_id, **{key: {"action": "accept", "content": {}}})
                with pytest.raises(MCPError, match="no ElicitResult"):
                    await respond(client, task.task_id, **{key: 7})
                await respond(client, task.task_id, **{key: {"action": "cancel"}, "other": 7})
                assert (await got(client, task.task_id)).input_requests == asked.input_requests
                await respond(client, task.task_id, **{key: answer})
                ends.append(await reached(client, task.task_id, *ENDS))
                await respond(client, task.task_id, **{key: answer})
            return ends

    approved, denied, declined = asyncio.run(use())

    assert approved.result["structuredContent"] == {"wiped": "sda"}
    assert doors.stack.client.record(approved.task_id).approved_by == "MCP client odd\\nclient"
    for end in (denied, declined):
        assert (end.status, end.result["isError"]) == ("completed", True)
        assert end.result["structuredContent"]["error"]["code"] == "E_APPROVAL_DENIED"
    assert "in use" in denied.result["content"][0]["text"]


def test_client_unable_to_ask_user_sees_what_call_awaits(doors: Doors) -> None:
    async def use() -> Any:
        async with doors.client("http", "auto", extensions=[TasksExtension()]) as client:
            task = await task_of(client, "guarded__wipe", disk="sdb")
            waiting = await got(client, task.task_id)
            doors.stack.client.approve(task.task_id)
            return waiting, await reached(client, task.task_id, *ENDS)

    waiting, ended = asyncio.run(use())

    assert waiting.status == "working"
    assert waiting.status_message.startswith("waiting for an approval for ")
    assert ended.result["structuredContent"] == {"wiped": "sdb"}


def test_pending_call_page_is_shown_until_completion(doors: Doors) -> None:
    page = "https://pay.example/7"

    async def use() -> Any:
        async with doors.client("http", "auto", **ASKING) as client:
            task = await task_of(client, "jobs__begin", handle=page)
            asked = await reached(client, task.task_id, "input_required")
            await respond(client, task.task_id, page={"action": "accept"})
            doors.stack.client.resolve(task.task_id, "paid")
            other = await task_of(client, "jobs__begin", handle=page)
            await reached(client, other.task_id, "input_required")
            await respond(client, other.task_id, page={"action": "decline"})
            ends = [await reached(client, one.task_id, *ENDS) for one in (task, other)]
            return asked.input_requests["page"]["params"], *ends

    asked, paid, declined = asyncio.run(use())

    assert (asked["mode"], asked["url"]) == ("url", page)
    assert paid.result["content"][0]["text"] == "paid"
    assert declined.status == "cancelled"


def test_cancelled_task_is_cancelled_once(doors: Doors) -> None:
    async def use() -> Any:
        async with doors.client("http", "auto", **ASKING) as client:
            task = await task_of(client, "jobs__begin")
            await cancel(client, task.task_id)
            ended = await reached(client, task.task_id, *ENDS)
            await cancel(client, task.task_id)
            return ended

    assert asyncio.run(use()).status == "cancelled"


def test_ids_of_no_server_task_are_unknown(doors: Doors) -> None:
    client = doors.stack.client
    ids = [
        "nothing",
        "x" * 10_000,
        client.submit("builder", "guarded__look").id,
        client.submit("clerk", "guarded__look", instance_key="mcp-1", turn_id="mcp-task-1").id,
        client.submit("builder", "guarded__look", instance_key="other", turn_id="mcp-task-1").id,
    ]

    async def use() -> list[int]:
        codes = []
        async with doors.client("http", "auto", **ASKING) as mcp_client:
            for task_id in ids:
                for ask in (got, respond, cancel):
                    with pytest.raises(MCPError, match="There is no task") as refused:
                        await ask(mcp_client, task_id)
                    codes.append(refused.value.code)
        return codes

    assert set(asyncio.run(use())) == {INVALID_PARAMS}
    assert client.pending(ids[2]).result(60).output == "gold"


@pytest.mark.parametrize(
    ("mode", "code"), [("auto", MISSING_REQUIRED_CLIENT_CAPABILITY), ("legacy", METHOD_NOT_FOUND)]
)
def test_client_without_extension_gets_no_task(doors: Doors, mode: Any, code: int) -> None:
    async def use() -> tuple[Any, int]:
        async with doors.client("http", mode) as client:
            calling = asyncio.create_task(client.call_tool("jobs__begin", {"handle": f"plain-{mode}"}))
            held = None
            while held is None:
                calls = await asyncio.to_thread(doors.stack.client.calls, "builder", status="pending")
                held = next((call for call in calls if call.handle == f"plain-{mode}"), None)
            with pytest.raises(MCPError) as refused:
                await got(client, held.id)
            doors.stack.client.resolve(held.id, 7)
            return await calling, refused.value.code

    result, refused = asyncio.run(use())

    assert (result.content[0].text, refused) == ("7", code)


class Misrouted(TaskParams):
    route: str = "other"


class GetMisrouted(Request[Misrouted, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "route"


def test_request_routed_to_another_task_is_refused(doors: Doors) -> None:
    async def use() -> int:
        async with doors.client("http", "auto", **ASKING) as client:
            request = GetMisrouted(params=Misrouted(task_id="one"))
            with pytest.raises(MCPError, match="mcp-name") as refused:
                await client.session.send_request(request, DetailedTask)
        return refused.value.code

    assert asyncio.run(use()) == HEADER_MISMATCH
