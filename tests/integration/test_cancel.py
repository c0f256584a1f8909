"""Cancelling calls: queued, running, ended, and while their worker is away."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from redis import Redis

from goondan_tasks.client import AsyncClient, Client, PendingCall
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.crew import Crew
from tests.integration.results import code_of
from tests.processes import runs
from tests.waiting import wait_until

PATIENCE = 60
#: before the handlers that wait to be told give up
SOON = 30


@pytest.fixture
def stack(smithy: Crew) -> LocalStack:
    return smithy.stack


def begin(client: Client, tool: str, place: Path) -> PendingCall:
    """Submit a call and wait until its handler has begun."""
    call = client.submit("smith", tool, {"place": str(place)})
    wait_until(lambda: (place / "began").exists() and (place / "began").read_text() == "x\n", PATIENCE)
    return call


def test_endless_plain_handler_is_abandoned_and_frees_slot(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    smithy.muster(concurrency=1)
    call = begin(stack.client, "patient__stubborn", tmp_path)
    call.cancel()
    result = call.result(SOON)
    assert code_of(result) == "E_TOOL_CANCELLED"
    assert stack.client.call("smith", "echo__args", {"n": 1}, timeout=SOON).output == {"n": 1}
    (tmp_path / "guest").touch()
    wait_until((tmp_path / "ended").exists)
    assert stack.client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"
    assert stack.client.pending(call.id).result(SOON) == result


def test_cancelling_twice_works_but_after_end_is_error(client: Client, tmp_path: Path) -> None:
    call = begin(client, "patient__waits", tmp_path)
    call.cancel()
    call.cancel()
    assert code_of(call.result(PATIENCE)) == "E_TOOL_CANCELLED"
    call.cancel()
    ended = client.submit("smith", "echo__args", {"n": 1})
    result = ended.result(PATIENCE)
    with pytest.raises(CallClosedError):
        ended.cancel()
    assert client.pending(ended.id).result(SOON) == result
    for unknown in ("no-such-call", "", "x" * 1_000_000, "\ud800"):
        with pytest.raises(CallNotFoundError):
            client.cancel(unknown)


def test_async_handler_is_cancelled_and_may_clean_up(client: Client, tmp_path: Path) -> None:
    call = begin(client, "patient__waits", tmp_path)
    call.cancel()
    result = call.result(SOON)
    assert code_of(result) == "E_TOOL_CANCELLED"
    assert result.meta.started_at is not None
    assert (tmp_path / "cleaned").exists()


def test_output_of_cancelled_handler_is_dropped(client: Client, tmp_path: Path) -> None:
    call = begin(client, "patient__unhurt", tmp_path)
    call.cancel()
    result = call.result(SOON)
    assert (code_of(result), result.output) == ("E_TOOL_CANCELLED", None)
    assert result.meta.duration_ms is not None


def test_async_handler_that_does_not_end_is_abandoned(client: Client, tmp_path: Path) -> None:
    call = begin(client, "patient__deaf", tmp_path)
    call.cancel()
    assert code_of(call.result(PATIENCE)) == "E_TOOL_CANCELLED"
    assert (tmp_path / "ignored").exists()
    (tmp_path / "guest").touch()


def test_async_handler_that_ignores_its_limit_is_abandoned(client: Client, tmp_path: Path) -> None:
    args = {"place": str(tmp_path)}
    result = client.call("smith", "patient__deaf", args, timeout_seconds=1, timeout=PATIENCE)
    (tmp_path / "guest").touch()
    assert code_of(result) == "E_TOOL_TIMEOUT"
    assert result.error is not None
    assert result.error.message == "The tool did not finish within 1 s."
    assert (tmp_path / "ignored").read_text() == "x\n"


def test_async_handler_may_clean_up_beyond_its_limit(client: Client, tmp_path: Path) -> None:
    args = {"place": str(tmp_path), "broom": str(tmp_path / "broom")}
    result = client.call("smith", "patient__waits", args, timeout_seconds=1, timeout=PATIENCE)
    assert code_of(result) == "E_TOOL_TIMEOUT"
    assert not (tmp_path / "cleaned").exists()
    (tmp_path / "broom").touch()
    wait_until((tmp_path / "cleaned").exists)


def test_limits_hold_while_handler_blocks_event_loop(client: Client, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("blocks", "waits")]
    for place in places:
        place.mkdir()
    args = [{"place": str(place)} for place in places]
    blocks = client.submit("smith", "patient__blocks", args[0], timeout_seconds=1)
    wait_until((places[0] / "began").exists, PATIENCE)
    waits = client.submit("smith", "patient__waits", args[1], timeout_seconds=0.3)
    codes = [code_of(call.result(PATIENCE)) for call in (blocks, waits)]
    assert client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"
    assert blocks.status() == "done"
    (places[0] / "guest").touch()
    assert codes == ["E_TOOL_TIMEOUT"] * 2
    # the loop goes through its work in order
    assert client.call("smith", "patient__waits", args[0], timeout=PATIENCE).output == "met"
    assert not (places[1] / "began").exists()


def test_polling_plain_handler_sees_cancellation(client: Client, tmp_path: Path) -> None:
    call = begin(client, "patient__asks", tmp_path)
    call.cancel()
    assert code_of(call.result(SOON)) == "E_TOOL_CANCELLED"
    wait_until((tmp_path / "saw").exists)


def test_plain_handler_past_limit_sees_cancellation(client: Client, tmp_path: Path) -> None:
    args = {"place": str(tmp_path)}
    result = client.call("smith", "patient__asks", args, timeout_seconds=0.3, timeout=PATIENCE)
    assert code_of(result) == "E_TOOL_TIMEOUT"
    wait_until((tmp_path / "saw").exists)


def test_program_is_ended_with_everything_it_started(client: Client, tmp_path: Path) -> None:
    script = (
        f"setsid sh -c 'setsid sleep 300 & echo $! > {tmp_path}/grandchild; sleep 300' & "
        f"echo $$ > {tmp_path}/child; sleep 300"
    )
    call = client.submit("smith", "bash__exec", {"command": script, "timeoutMs": 0})
    pids = [tmp_path / "child", tmp_path / "grandchild"]
    wait_until(lambda: all(file.exists() and file.read_text().strip() for file in pids), PATIENCE)
    call.cancel()
    assert code_of(call.result(SOON)) == "E_TOOL_CANCELLED"
    wait_until(lambda: not any(runs(int(file.read_text())) for file in pids))


def test_cancel_by_another_client_reaches_all_waiting_clients(
    calls_stack: LocalStack, tmp_path: Path
) -> None:
    waiting = begin(calls_stack.client, "patient__waits", tmp_path)

    async def cancel_elsewhere() -> ToolCallResult:
        async with await AsyncClient.connect(calls_stack.redis_url) as other:
            await other.cancel(waiting.id)
            return await (await other.pending(waiting.id)).wait(PATIENCE)

    seen_elsewhere = asyncio.run(cancel_elsewhere())
    assert code_of(seen_elsewhere) == "E_TOOL_CANCELLED"
    assert waiting.result(SOON) == seen_elsewhere


def test_call_cancelled_after_worker_death_stays_cancelled(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster()
    again = stack.client.submit("smith", "meeting__sync", {"place": str(tmp_path / "again"), "guests": 2})
    once = begin(stack.client, "patient__waits", tmp_path)
    wait_until(lambda: any((tmp_path / "again").glob("*")))
    worker.kill()
    worker.wait(PATIENCE)
    for call in (once, again):
        call.cancel()
    smithy.add()
    assert [code_of(call.result(PATIENCE)) for call in (once, again)] == ["E_TOOL_CANCELLED"] * 2
    assert len(list((tmp_path / "again").iterdir())) == 1
    assert (tmp_path / "began").read_text() == "x\n"


def test_woken_worker_stops_call_cancelled_while_frozen(
    smithy: Crew, stack: LocalStack, tmp_path: Path
) -> None:
    [worker] = smithy.muster()
    call = begin(stack.client, "patient__waits", tmp_path)
    os.kill(worker.pid, signal.SIGSTOP)
    call.cancel()
    smithy.add()
    result = call.result(PATIENCE)
    assert code_of(result) == "E_TOOL_CANCELLED"
    assert not (tmp_path / "cleaned").exists()
    os.kill(worker.pid, signal.SIGCONT)
    wait_until((tmp_path / "cleaned").exists)
    assert stack.client.pending(call.id).result(SOON) == result


def test_worker_that_reconnects_sees_cancel(smithy: Crew, stack: LocalStack, tmp_path: Path) -> None:
    smithy.muster()
    call = begin(stack.client, "patient__waits", tmp_path)
    with Redis.from_url(stack.redis_url) as redis:
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        call.cancel()
    assert code_of(call.result(SOON)) == "E_TOOL_CANCELLED"
    wait_until((tmp_path / "cleaned").exists)


def test_result_that_was_stored_before_cancel_stays(client: Client) -> None:
    calls = [client.submit("smith", "echo__args", {"n": number}) for number in range(40)]
    told: list[str | None] = []
    for call in calls:
        try:
            call.cancel()
            told.append("E_TOOL_CANCELLED")
        except CallClosedError:
            told.append(None)
    assert [code_of(call.result(PATIENCE)) for call in calls] == told
