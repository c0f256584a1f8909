"""A real host and its connection: messages that are too large, code that writes or reads them itself, and
calls while it is not known whether the host is blocked.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.errors import PayloadTooLargeError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine.process import child_environment
from tests.javascript_runtimes import NAMES, runtime
from tests.waiting import wait_until
from workers.javascript import host as host_module
from workers.javascript.host import Host, HostEndedError, HostKind

MOST = 100_000
HANDLERS = """
import { appendFileSync, readlinkSync, readSync, writeSync } from 'node:fs';

process.env.OF_FILE = 'kept';

export const handlers = {
  echoes: (_ctx, input) => input,
  makes: (_ctx, { size }) => 'x'.repeat(size),
  asks: async (ctx, { text, times }) => await ctx.runtime.send(text.repeat(times)),
  misasks: async (ctx) => await ctx.runtime.send(),
  merges: (_ctx, { text }) => {
    for (const [name, value] of Object.entries(JSON.parse(text))) Object.assign(({})[name], value);
  },
  moves: (_ctx, { to }) => {
    process.chdir(to);
    process.env.OF_A_CALL = 'left behind';
    process.umask(0o077);
    return readlinkSync('/proc/self/cwd');
  },
  looks() {
    const { OF_A_CALL, OF_FILE } = process.env;
    return [readlinkSync('/proc/self/cwd'), OF_A_CALL ?? null, OF_FILE, process.umask()];
  },
  waits: (_ctx, { file }) => {
    if (file) appendFileSync(file, 'begun');
    return new Promise(() => {});
  },
  blocks: (_ctx, { file }) => {
    appendFileSync(file, 'begun');
    for (;;) {}
  },
  writes: (_ctx, { text, times }) => {
    for (let done = 0; done < times; ) {
      try {
        writeSync(3, text);
        done += 1;
      } catch (error) {
        if (error.code !== 'EAGAIN') throw error;
      }
    }
  },
  reads(ctx) {
    const message = '{"t":"log","id":1,"level":"info","event":"reading"}';
    writeSync(3, `${message.length}:${message}\\n`);
    for (;;) {
      try {
        readSync(3, Buffer.alloc(10));
        return new Promise(() => {});
      } catch {} // nothing has come yet
    }
  },
};
"""

Run = Callable[..., Awaitable[tuple[str, JsonObject]]]


@pytest.fixture(params=NAMES)
def in_host(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Return what passes a test a host, and the function that runs one of ``HANDLERS`` in it."""
    entry = tmp_path / "entry.mjs"
    entry.write_text(HANDLERS, "utf-8")
    environment = tuple(child_environment().items())

    async def go(
        test: Callable[[Host, Run, asyncio.Queue[Any]], Awaitable[None]], *, is_alone: bool = False
    ) -> None:
        kind = HostKind(
            tmp_path, runtime(request.param), environment, is_alone=is_alone, max_message_bytes=MOST
        )
        host, seen = await Host.start(kind, "https://help/"), asyncio.Queue[Any]()

        async def send(text: str) -> str:
            seen.put_nowait(text)
            return "y" * int(text) if text.isdigit() else "sent"

        def run(name: str, **given: Any) -> Awaitable[tuple[str, JsonObject]]:
            order = {"entry": str(entry), "export": name, "input": given, "ctx": {"runtime": True}}
            return host.run(
                order,
                lambda _, message: seen.put_nowait(message["event"]),
                lambda: {"runtime.send": send},
                lambda: {"message": "cancelled"},
            )

        try:
            await test(host, run, seen)
        finally:
            host.stop("was ended")
            await host.ended.wait()

    return lambda test, **options: asyncio.run(go(test, **options))


@pytest.mark.skipif(sys.platform != "linux", reason="the directory of a process is read from /proc")
def test_call_cannot_change_directory_of_shared_host(in_host: Callable[..., None], tmp_path: Path) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        kind, message = await run("moves", to="/")

        assert (kind, message["error"]["message"][:14]) == ("error", "process.chdir ")
        assert (await run("looks"))[1]["value"][0] == str(tmp_path)

    in_host(test)


@pytest.mark.skipif(sys.platform != "linux", reason="the directory of a process is read from /proc")
def test_isolated_host_call_affects_no_other_call(in_host: Callable[..., None], tmp_path: Path) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        before = (await run("looks"))[1]["value"]
        assert (await run("moves", to="/"))[1]["value"] == "/"

        assert (await run("looks"))[1]["value"] == before
        assert before[:3] == [str(tmp_path), None, "kept"]

    in_host(test, is_alone=True)


@pytest.mark.parametrize("field", ["error", "does", "v1"])
def test_planted_prototype_field_changes_no_later_call(in_host: Callable[..., None], field: str) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        await run("merges", text=json.dumps({"__proto__": {field: {"message": "planted"}}}))

        assert await run("asks", text="x", times=1) == ("value", {"value": "sent"})

    in_host(test)


def test_oversized_value_fails_only_its_own_call(in_host: Callable[..., None]) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        kind, message = await run("makes", size=MOST)

        assert kind == "error"
        assert message["error"]["code"] == "E_PAYLOAD_TOO_LARGE"
        assert message["error"]["message"].endswith(f"bytes; at most {MOST} are allowed.")
        kind, message = await run("makes", size=MOST - 100)
        assert (kind, len(message["value"])) == ("value", MOST - 100)

    in_host(test)


def test_oversized_question_or_answer_raises_in_handler(
    in_host: Callable[..., None],
) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        _, asked = await run("asks", text="x", times=MOST)
        assert seen.empty()
        _, answered = await run("asks", text=str(MOST), times=1)
        assert asked["error"]["code"] == answered["error"]["code"] == "E_PAYLOAD_TOO_LARGE"
        assert (await run("asks", text="x", times=1))[1]["value"] == "sent"

    in_host(test)


def test_question_without_its_arguments_is_error_for_handler(in_host: Callable[..., None]) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        kind, message = await run("misasks")
        assert (kind, message["error"]["name"]) == ("error", "TypeError")

    in_host(test)


def test_order_that_is_too_large_is_refused(in_host: Callable[..., None]) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        with pytest.raises(PayloadTooLargeError, match=f"at most {MOST} are allowed"):
            await run("echoes", text="x" * MOST)
        assert host.is_idle
        assert (await run("echoes", text="é"))[1]["value"] == {"text": "é"}

    in_host(test)


@pytest.mark.parametrize(
    ("text", "times", "reason"),
    [
        ('{"t":"value","id":1,"value":"', 1, "disturbed its connection to the worker"),
        ('40:{"t":"value","id":1,"value":"', 1, "disturbed its connection to the worker"),
        ("\n", 1, "disturbed its connection to the worker"),
        ("x" * 1_000, MOST // 100, f"sent a message of more than {MOST} bytes"),
    ],
)
def test_host_with_indistinguishable_messages_is_ended(
    in_host: Callable[..., None], text: str, times: int, reason: str
) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        beside = asyncio.ensure_future(run("waits"))
        with pytest.raises(HostEndedError, match=f"The tool's process {reason}"):
            await run("writes", text=text, times=times)
        assert not host.is_open
        with pytest.raises(HostEndedError, match=reason):
            await beside

    in_host(test)


def test_host_that_has_lost_part_of_message_ends(in_host: Callable[..., None]) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        reading = asyncio.ensure_future(run("reads"))
        assert await seen.get() == "reading"
        with pytest.raises(HostEndedError, match="ended with exit status 1"):
            await run("echoes", text="x")
        with pytest.raises(HostEndedError):
            await reading

    in_host(test)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no host for blocked that a busy machine gives no time to answer."""
    monkeypatch.setattr(host_module, "PONG_SECONDS", 60)


@pytest.mark.usefixtures("unhurried")
def test_running_handler_has_begun_despite_delayed_pong(in_host: Callable[..., None], tmp_path: Path) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        file, cancelled = tmp_path / "file", asyncio.ensure_future(run("waits"))
        values = [asyncio.ensure_future(run("makes", size=MOST - 100)) for _ in range(100)]
        await asyncio.wait(values, return_when=asyncio.FIRST_COMPLETED)
        cancelled.cancel()
        await asyncio.sleep(0)  # sends the ping
        blocking = asyncio.ensure_future(run("blocks", file=str(file)))
        await asyncio.to_thread(wait_until, file.exists)
        host.stop("was ended")
        with pytest.raises(HostEndedError) as ended:
            await blocking
        assert ended.value.has_begun
        await asyncio.wait([cancelled, *values])

    in_host(test)


def test_call_sent_to_blocked_host_never_begins(in_host: Callable[..., None], tmp_path: Path) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        cancelled = asyncio.ensure_future(run("waits"))
        blocking = asyncio.ensure_future(run("blocks", file=str(first)))
        await asyncio.to_thread(wait_until, first.exists)
        cancelled.cancel()
        await asyncio.sleep(0)  # sends the ping
        with pytest.raises(HostEndedError, match="did not answer any more") as ended:
            await run("blocks", file=str(second))
        assert not ended.value.has_begun
        assert not second.exists()
        with pytest.raises(HostEndedError) as ended:
            await blocking
        assert ended.value.has_begun

    in_host(test)


@pytest.mark.usefixtures("unhurried")
def test_call_cancelled_before_pong_does_not_begin(in_host: Callable[..., None], tmp_path: Path) -> None:
    async def test(host: Host, run: Run, seen: asyncio.Queue[Any]) -> None:
        file, first = tmp_path / "file", asyncio.ensure_future(run("waits"))
        assert (await run("echoes"))[0] == "value"
        first.cancel()
        await asyncio.sleep(0)  # sends the ping
        second = asyncio.ensure_future(run("waits", file=str(file)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([first, second])
        assert (await run("echoes", text="x"))[1]["value"] == {"text": "x"}
        assert host.is_idle
        assert not file.exists()

    in_host(test)
