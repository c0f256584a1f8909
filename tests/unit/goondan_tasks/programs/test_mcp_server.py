"""The MCP server of an agent."""

import asyncio
from typing import Any

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from goondan_tasks.contract.errors import BrokerUnreachableError, OutputGoneError, WaitTimeout
from goondan_tasks.contract.messages import JsonObject, ToolCallResult
from goondan_tasks.contract.output import Progress, ProgressReport
from goondan_tasks.programs import mcp_calls
from goondan_tasks.programs.mcp_calls import ToolCalls
from goondan_tasks.programs.mcp_server import AgentServer
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, META, result
from tests.unit.goondan_tasks.fake_async_client import FakeAsyncClient

PATIENCE = 20

both_ages = pytest.mark.parametrize("mode", ["legacy", "auto"])


def tool(name: str, parameters: JsonObject | None = None) -> JsonObject:
    """Make a ToolCatalogItem."""
    return {"name": name, "parameters": parameters, "source": {"type": "config", "name": "t"}}


def connect(fake: FakeAsyncClient, mode: str = "auto", **fields: Any) -> Client:
    """Make a client of a server of the agent ``coder``."""
    server = AgentServer(fake.as_client, "coder", help_url="https://help.example/", look_seconds=0.01)
    return Client(server.build(), mode=mode, cache=None, **fields)


@both_ages
@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": ["object", "null"]},
        {"type": "string"},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "properties": {"any": True, "none": False}},
    ],
)
def test_any_parameters_make_tool_that_can_be_listed(mode: str, parameters: JsonObject | None) -> None:
    async def names() -> list[str]:
        async with connect(FakeAsyncClient([tool("a__b", parameters), tool("v1.dotted")]), mode) as client:
            return [listed.name for listed in (await client.list_tools()).tools]

    assert asyncio.run(names()) == ["a__b", "v1.dotted"]


@both_ages
def test_broker_outage_is_reported_without_stopping_server(mode: str) -> None:
    async def use() -> Any:
        fake = FakeAsyncClient([tool("a__b")], [result(output=1)], is_away=True)
        async with connect(fake, mode) as client:
            with pytest.raises(MCPError, match="E_BROKER_UNREACHABLE: Redis is away"):
                await client.list_tools()
            refused = await client.call_tool("a__b", {})
            assert refused.structured_content["error"]["code"] == "E_BROKER_UNREACHABLE"
            fake.is_away = False
            return await client.call_tool("a__b", {})

    assert asyncio.run(use()).is_error is False


@both_ages
def test_pending_call_is_waited_for(mode: str) -> None:
    async def use() -> Any:
        outcomes = [result("pending", handle="job-1"), result(output={"at": "last"})]
        async with connect(FakeAsyncClient([], outcomes), mode) as client:
            return await client.call_tool("a__b", {})

    assert asyncio.run(use()).structured_content == {"at": "last"}


async def ignore(progress: float, total: float | None, message: str | None) -> None:
    """Take a report of progress."""


@pytest.mark.parametrize("on_progress", [None, ignore])
def test_outage_during_call_does_not_fail_call(on_progress: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_calls, "PAUSE_SECONDS", 0)

    async def use() -> Any:
        outcomes = [BrokerUnreachableError("Redis is away.")] * 3 + [result(output={"at": "last"})]
        async with connect(FakeAsyncClient([], outcomes)) as client:
            return await client.call_tool("a__b", {}, progress_callback=on_progress)

    assert asyncio.run(use()).structured_content == {"at": "last"}


def test_lasting_outage_names_id_of_continuing_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_calls, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(mcp_calls, "OUTAGE_SECONDS", 0)

    async def use() -> Any:
        outcomes = [BrokerUnreachableError("Redis is away.")] * 2
        async with connect(FakeAsyncClient([], outcomes)) as client:
            return await client.call_tool("a__b", {})

    told = asyncio.run(use())
    assert told.structured_content["error"]["code"] == "E_BROKER_UNREACHABLE"
    assert told.meta["goondan.ai/callId"] == CALL_ID


def test_only_increasing_progress_is_reported() -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async def use() -> None:
        steps = [(1, "one"), (1, "still one"), (0.5, "back"), (2, None)]
        updates = [Progress(done=done, total=2, message=said, updated_at="") for done, said in steps]
        outcomes = [WaitTimeout(CALL_ID, 0)] * 3 + [result(output="done")]
        async with connect(FakeAsyncClient([], outcomes, updates), "legacy") as client:
            await client.call_tool("a__b", {}, progress_callback=on_progress)

    asyncio.run(use())
    assert told == [(1, 2, "one"), (2, 2, None)]


def test_progress_between_looks_arrives_once_in_order() -> None:
    told: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    async def use() -> None:
        first = Progress(done=0, updated_at="")
        last = Progress(
            done=3, updated_at="", earlier=tuple(ProgressReport(done=done) for done in (0, 1, 0.5, 2))
        )
        outcomes: list[ToolCallResult | Exception] = [WaitTimeout(CALL_ID, 0), result(output="done")]
        async with connect(FakeAsyncClient([], outcomes, [first, last]), "legacy") as client:
            await client.call_tool("a__b", {}, progress_callback=on_progress)

    asyncio.run(use())
    assert told == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("file", "size", "kinds"),
    [
        (b'{"type":"image","mimeType":"image/png","data":"%b"}' % (b"AAAA" * 100), 450, ["image"]),
        (b'{"type":"image","mimeType":"image/png","data":"%b"}' % (b"????" * 100), 450, ["text"]),
        (b'{"type":"image","mimeType":"image/png","data":"AAAA"}', 2**40, ["text"]),
        (b'{"type":"image"', 15, ["text"]),
        (OutputGoneError("The output is not there any more."), 450, ["text"]),
        (WaitTimeout(CALL_ID, 30), 450, ["text"]),
    ],
)
def test_oversized_result_content_is_read_from_file(
    file: bytes | Exception, size: int, kinds: list[str]
) -> None:
    stored = {"path": ".outputs/x.json", "size": size, "preview": '{"type":"image",'}
    outcome = result(output=stored, meta={**META, "outputFile": ".outputs/x.json"})

    async def use() -> Any:
        async with connect(FakeAsyncClient([], [outcome], file=file)) as client:
            return await client.call_tool("a__b", {})

    told = asyncio.run(use())
    assert [block.type for block in told.content] == kinds
    assert (told.is_error, told.meta["goondan.ai/callId"]) == (False, CALL_ID)


def test_catalog_change_is_announced_once_outage_never() -> None:
    fake = FakeAsyncClient([tool("a__b")])
    first = asyncio.Event()

    def change(_: FakeAsyncClient) -> None:
        fake.is_away = fake.looks in {5, 6}
        if fake.looks == 10:
            fake.catalog_now = [tool("c__d")]
        if fake.looks == 20:
            first.set()

    async def use() -> int:
        fake.on_look = change
        events = 0
        async with connect(fake) as client, client.listen(tools_list_changed=True) as changes:

            async def count() -> None:
                nonlocal events
                async for _ in changes:
                    events += 1

            counting = asyncio.create_task(count())
            await asyncio.wait_for(first.wait(), PATIENCE)
            counting.cancel()
        return events

    assert asyncio.run(use()) == 1


def test_call_names_origin_and_keeps_session() -> None:
    fake = FakeAsyncClient([], [result(output=1)])

    async def use() -> None:
        async with connect(fake) as client:
            await client.call_tool("a__b", {"n": 1})
            await client.call_tool("a__b", None)

    asyncio.run(use())
    one, two = fake.submitted
    assert (one["agent"], one["tool"], one["args"], two["args"]) == ("coder", "a__b", {"n": 1}, {})
    assert one["instance_key"] == two["instance_key"]
    assert one["origin"] == {"connector": "mcp", "client": {"name": "mcp", "version": "0.1.0"}}


def test_call_being_submitted_at_shutdown_is_cancelled() -> None:
    async def end_amid_a_submission() -> list[str]:
        fake = FakeAsyncClient(outcomes=[result(output=1)], may_submit=asyncio.Event())
        assert fake.may_submit is not None
        calls = ToolCalls(fake.as_client, "coder", "")
        running = asyncio.create_task(calls.run("a__b", {}))
        await asyncio.sleep(0)  # it is submitted now
        ending = asyncio.create_task(calls.cancel_all())
        await asyncio.sleep(0)
        assert not ending.done()
        fake.may_submit.set()
        await asyncio.gather(running, ending)
        return fake.cancelled

    assert asyncio.run(end_amid_a_submission()) == [CALL_ID]
