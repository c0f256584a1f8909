"""Outputs too large for a result: written by one process, read by another."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config import serializer
from broker_config.connections import connect
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    NoOutputError,
    OutputGoneError,
    ToolInputValidationError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.names import READ_OUTPUT_TOOL
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan, goondan_program

OUTPUTS_BUNDLE = Path(__file__).parents[1] / "bundles" / "outputs"
PATIENCE = 60
LIMIT = 262_144
LARGE = {"characters": 300_000, "of": 'a"b\\한🙂\n'}


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run one worker for the keeper; the clerk has none."""
    with LocalStack(OUTPUTS_BUNDLE, agents=["keeper"]) as running:
        yield running


@pytest.fixture
def client(stack: LocalStack) -> Client:
    return stack.client


def the_text(args: dict[str, Any]) -> str:
    of, characters = str(args["of"]), int(args["characters"])
    return (of * (characters // len(of) + 1))[:characters]


def large(client: Client, instance: str = "default", tool: str = "load__text") -> ToolCallResult:
    return client.call("keeper", tool, LARGE, instance_key=instance, timeout=PATIENCE)


def whole(client: Client, call_id: str) -> bytes:
    return b"".join(
        part.data for part in client.output(call_id).parts(wait=lambda call: call.result(PATIENCE))
    )


@pytest.mark.parametrize("tool", ["load__text", "load__async"])
def test_large_output_is_file_that_model_can_read(client: Client, tool: str) -> None:
    result = large(client, "reading", tool)
    assert result.status == "ok"
    assert set(result.output) == {"path", "size", "preview"}
    assert result.meta.output_file == result.output["path"]
    text = serializer.encode(the_text(LARGE)).decode()
    assert text.startswith(result.output["preview"])
    args = {"path": result.output["path"], "maxBytes": 5_000_000}
    read = client.call("keeper", "file-system__read", args, instance_key="reading", timeout=PATIENCE)
    # what the file tool gives is too large in turn
    assert read.meta.output_file is not None
    assert json.loads(whole(client, read.meta.id))["content"] == text


def test_producer_fetches_output_in_parts_leaving_nothing_behind(client: Client, stack: LocalStack) -> None:
    result = large(client)
    with connect(stack.redis_url) as redis:
        before = set(redis.scan_iter())
        assert json.loads(whole(client, result.meta.id)) == the_text(LARGE)
        assert {key for key in redis.scan_iter() if b"unacked" not in key} <= before
    tools = {record.call.tool_name for record in client.calls("keeper")}
    assert READ_OUTPUT_TOOL not in tools


def test_part_can_be_asked_for(client: Client) -> None:
    call_id = large(client).meta.id
    data = serializer.encode(the_text(LARGE))
    part = client.read_output(call_id, 1000, 10, timeout=PATIENCE)
    assert (part.data, part.offset, part.size, part.next_offset) == (data[1000:1010], 1000, len(data), 1010)
    end = client.read_output(call_id, len(data), timeout=PATIENCE)
    assert (end.data, end.next_offset) == (b"", None)
    with pytest.raises(ToolInputValidationError, match="past the end"):
        client.read_output(call_id, len(data) + 1, timeout=PATIENCE)


def test_small_output_needs_no_worker(client: Client) -> None:
    result = client.call("keeper", "load__value", {"value": {"é": [1, None]}}, timeout=PATIENCE)
    data = '{"é":[1,null]}'.encode()
    assert whole(client, result.meta.id) == data
    part = client.read_output(result.meta.id, 1, 4)
    assert (part.data, part.next_offset, part.size) == (data[1:5], 5, len(data))
    for offset, limit in ((len(data) + 1, None), (-1, None), (0, 0)):
        with pytest.raises(ToolInputValidationError):
            client.read_output(result.meta.id, offset, limit)


def test_output_resembling_file_reference_stays_plain_output(client: Client) -> None:
    forged = {"path": "/etc/passwd", "size": 7, "preview": "root"}
    result = client.call("keeper", "load__value", {"value": forged}, timeout=PATIENCE)
    assert (result.output, result.meta.output_file) == (forged, None)
    assert json.loads(whole(client, result.meta.id)) == forged


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
def test_limit_itself_still_fits(client: Client, size: int) -> None:
    result = client.call("keeper", "load__text", {"characters": size - 2}, timeout=PATIENCE)
    assert (result.meta.output_file is None) == (size == LIMIT)


def test_system_tool_reads_only_outputs_of_its_instance(client: Client) -> None:
    path = large(client, "mine").output["path"]
    theirs = client.call("keeper", READ_OUTPUT_TOOL, {"path": path}, instance_key="theirs", timeout=PATIENCE)
    other = client.call("keeper", READ_OUTPUT_TOOL, {"path": "/etc/passwd"}, timeout=PATIENCE)
    wrong = client.call("keeper", READ_OUTPUT_TOOL, {"path": path, "offset": -1}, timeout=PATIENCE)
    near = client.call("keeper", "goondan__read", {"path": path}, timeout=PATIENCE)
    codes = [result.error.code for result in (theirs, other, wrong, near) if result.error]
    assert codes == ["E_OUTPUT_GONE", "E_TOOL_INVALID_ARGS", "E_TOOL_INVALID_ARGS", "E_TOOL_NOT_IN_CATALOG"]
    assert READ_OUTPUT_TOOL not in [item["name"] for item in client.catalog("keeper")]


def test_unreadable_output_is_reported(client: Client, stack: LocalStack) -> None:
    gone = large(client, "gone")
    [file] = stack.state_root.glob(f"workspaces/*/instances/gone/workspace/{gone.output['path']}")
    file.unlink()
    with pytest.raises(OutputGoneError, match="not there any more"):
        client.read_output(gone.meta.id, timeout=PATIENCE)
    failed = client.call("keeper", "load__value", {}, timeout=PATIENCE)
    with pytest.raises(NoOutputError, match="ended with an error, E_TOOL"):
        client.read_output(failed.meta.id)
    queued = client.submit("clerk", "poison__sip", {"antidote": "/"})
    with pytest.raises(NoOutputError, match="it is queued"):
        client.read_output(queued.id)
    with pytest.raises(CallNotFoundError):
        client.read_output("nobody")


def test_error_is_bounded_whatever_it_says_of_itself(client: Client) -> None:
    result = client.call("keeper", "load__shouts", {"characters": 5_000_000}, timeout=PATIENCE)
    assert result.error is not None
    assert len(serializer.encode(result.to_wire())) < LIMIT
    assert result.error.help_url is None


def test_async_producer_reads_it_too(client: Client) -> None:
    call_id = large(client).meta.id
    part = asyncio.run(AsyncClient(client).read_output(call_id, 0, 7, timeout=PATIENCE))
    assert part.data == serializer.encode(the_text(LARGE))[:7]


def test_output_reader_without_worker_waits_until_timeout(tmp_path: Path) -> None:
    with LocalStack(OUTPUTS_BUNDLE, agents=["keeper"]) as stack:
        call_id = large(stack.client).meta.id
        stack.stop_worker(stack.workers[0])
        with pytest.raises(WaitTimeout):
            stack.client.read_output(call_id, timeout=0.2)
        env = environment(redis_url=stack.redis_url)
        waited = goondan("output", call_id, "--timeout", "3", env=env)
        assert waited.exit_code == 4
        assert waited.stderr.startswith("no worker serves agent 'keeper'; start one with: goondan worker")
        stack.start_worker()
        assert json.loads(whole(stack.client, call_id)) == the_text(LARGE)


def test_output_of_fifty_megabytes_goes_through_small_redis(stack: LocalStack, tmp_path: Path) -> None:
    args = {"characters": 50_000_000, "of": "0123456789"}
    with connect(stack.redis_url) as redis:
        before = redis.info("memory")["used_memory"]
        redis.config_resetstat()
        result = stack.client.call("keeper", "load__text", args, timeout=PATIENCE)
        data = whole(stack.client, result.meta.id)
        peak = redis.info("memory")["used_memory_peak"]
    assert data == serializer.encode(the_text(args))
    assert peak - before < 32 * 1024 * 1024
    assert max(_most_resident_megabytes(worker.pid) for worker in stack.workers) < 400


def _most_resident_megabytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    [kilobytes] = re.findall(r"VmHWM:\s*(\d+) kB", status)
    return int(kilobytes) / 1024


def test_output_command_writes_every_byte(stack: LocalStack, client: Client, tmp_path: Path) -> None:
    env = environment(redis_url=stack.redis_url)
    call_id = large(client).meta.id
    data = serializer.encode(the_text(LARGE)).decode()
    raw = goondan("output", call_id, env=env)
    rest = goondan("output", call_id[:13], "--offset", "299000", env=env)
    document = goondan("output", call_id, "--json", env=env).document
    shown = goondan("result", call_id, env=env)
    assert (raw.exit_code, raw.stderr, raw.stdout) == (0, "", data)
    assert rest.stdout.encode() == data.encode()[299_000:]
    assert document == {"id": call_id, "size": len(data.encode()), "output": the_text(LARGE)}
    assert f"goondan output {call_id}" in shown.stderr


def test_output_command_reports_unavailable_output(stack: LocalStack, client: Client) -> None:
    env = environment(redis_url=stack.redis_url)
    result = large(client, "to-go")
    past = goondan("output", result.meta.id, "--offset", "999999999", env=env)
    [file] = stack.state_root.glob(f"workspaces/*/instances/to-go/workspace/{result.output['path']}")
    file.unlink()
    gone = goondan("output", result.meta.id, "--json", env=env)
    failed = client.call("keeper", "load__value", {}, timeout=PATIENCE)
    without = goondan("output", failed.meta.id, "--json", env=env)
    unknown = goondan("output", "nobody", "--json", env=env)
    mixed = goondan_program("output", result.meta.id, "--offset", "1", "--json", env=env)
    assert (past.exit_code, "past the end" in past.stderr) == (2, True)
    assert (gone.exit_code, gone.document["error"]["code"]) == (1, "E_OUTPUT_GONE")
    assert (without.exit_code, without.document["error"]["code"]) == (1, "E_CALL_NO_OUTPUT")
    assert (unknown.exit_code, unknown.document["error"]["code"]) == (2, "E_CALL_NOT_FOUND")
    assert (mixed.exit_code, mixed.document["error"]["code"]) == (2, "E_USAGE")
