"""The hosts of tools in JavaScript: which calls share one, and when they end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
import yaml

from broker_config import serializer
from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.output import MOST_EMITTED_BYTES
from goondan_tasks.machine import sandbox
from tests.javascript_runtimes import NAMES, runtime
from tests.unit.workers.mcp.tool_contexts import Progress, context
from tests.waiting import wait_until
from workers.javascript import tools
from workers.javascript.tools import HostedTools, Hosts
from workers.outcome import outcome_of
from workers.processes.confinement import Confinement
from workers.reporters import OutputEmitter

needs_bubblewrap = pytest.mark.skipif(sandbox.fault() is not None, reason="no sandbox here")


CODE = """
import { existsSync, writeFileSync, writeSync } from 'node:fs';

const told = (text) => {
  const bytes = Buffer.from(`${Buffer.byteLength(text)}:${text}\\n`);
  for (let done = 0; done < bytes.length; ) {
    try {
      done += writeSync(3, bytes, done);
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
};
const bodies = {
  cycle: () => {
    const all = { items: [] };
    all.items.push({ all });
    return all;
  },
  bigint: () => ({ id: 10n }),
  number: () => ({ rows: [{ id: 653247040368672768 }] }),
  nan: () => [0, NaN],
  map: () => ({ 'a b': new Map([[1, 2]]) }),
  set: () => new Set(),
  promise: () => ({ later: Promise.resolve(1) }),
  function: () => ({ run: () => 1 }),
  undefined: () => [undefined],
  bytes: () => ({ data: new Uint8Array(3) }),
  error: () => ({ error: new Error('x') }),
};

export const handlers = {
  pid: () => process.pid,
  returns: (ctx, { kind }) => bodies[kind](),
  echo: (ctx, input) => input,
  fine: () => {
    const shared = { big: 2 ** 53 - 1, huge: 1e300, text: '653247040368672768' };
    return { shared, again: [shared, shared], date: new Date(0), gone: undefined, buffer: Buffer.from('a') };
  },
  halves: (ctx) => {
    ctx.logger.info('\\ud800');
    ctx.progress(1, 2, '\\ud800');
    return { text: 'caf\\udce9', '\\ud800': 'kept' };
  },
  emits: async (ctx, { chunks }) => {
    for (let number = 0; number < chunks; number += 1) {
      ctx.emit(`${number} `);
    }
    await new Promise((resolve) => setTimeout(resolve, 1));
    const changed = { done: true };
    ctx.emit(changed);
    changed.done = false;
    const refused = ['x'.repeat(65_537), 10n, ['é'.repeat(40_000)]].map((chunk) => {
      try {
        return ctx.emit(chunk);
      } catch (error) {
        return error.message;
      }
    });
    ctx.emit();
    return refused;
  },
  emitsMuch: (ctx) => {
    for (let number = 0; number < 20; number += 1) {
      ctx.emit('x'.repeat(65_536));
    }
    throw new Error('too much');
  },
  emitsAndDies: (ctx, { mark }) => {
    ctx.emit(existsSync(mark) ? 'again.' : 'first.');
    if (!existsSync(mark)) {
      writeFileSync(mark, '');
      setTimeout(() => process.exit(1), 200);
      return new Promise(() => {});
    }
    return 'done';
  },
  says: (ctx, { frames }) => {
    frames.forEach(told);
    return 'done';
  },
  fails: (ctx, { size }) => {
    told(`{"t":"error","id":1,"error":{"message":"${'x'.repeat(size)}"}}`);
    return 'too late';
  },
  floods: (ctx, { reports }) => {
    for (let number = 0; number < reports; number += 1) {
      ctx.progress(number);
      ctx.logger.info('line');
    }
    return 'done';
  },
  asks: () => told('{"t":"ask","id":1,"ask":1,"method":"runtime.send","args":["x"]}'),
  causes: () => {
    throw new TypeError('fetch failed', { cause: new Error('refused', { cause: 'no route' }) });
  },
  parts: () => {
    throw new AggregateError([new Error('first part'), new Error('second part')], 'all failed');
  },
};
"""


def hosted(
    folder: Path, hosts: Hosts, name: str, export_name: str = "pid", **policy: object
) -> tools.HostedTool:
    """Return a tool of a new bundle; ``pid`` returns the number of its process."""
    export = {"name": export_name, "parameters": {"type": "object"}, **policy}
    documents = [
        {"apiVersion": "goondan.ai/v1", "kind": kind, "metadata": {"name": called}, "spec": spec}
        for kind, called, spec in (
            ("Tool", "own", {"entry": "./own.mjs", "exports": [export]}),
            ("Agent", "clerk", {"tools": ["Tool/own"]}),
        )
    ]
    folder.mkdir(exist_ok=True)
    (folder / "goondan.yaml").write_text(yaml.safe_dump_all(documents), "utf-8")
    (folder / "own.mjs").write_text(CODE, "utf-8")
    bundle = load_bundle(folder)
    made = HostedTools(hosts, folder, "https://help/", Confinement(bundle), runtime(name).name)
    return made.tool(bundle.bound_tools("clerk")[f"own__{export_name}"])


@needs_bubblewrap
@pytest.mark.parametrize("name", NAMES)
def test_idle_host_of_sandboxed_instance_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tools, "IDLE_SECONDS", 0)

    async def test() -> None:
        hosts = Hosts()
        tool = hosted(tmp_path / "bundle", hosts, name, sandbox=True)
        try:
            for instance in ("one", "two"):
                workdir = tmp_path / instance
                workdir.mkdir()
                assert await tool(replace(context(Progress()), workdir=workdir), {}) > 0
            await asyncio.to_thread(wait_until, lambda: hosts.is_empty)
        finally:
            await hosts.close()

    asyncio.run(test())


@pytest.fixture(params=NAMES)
def call(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that calls a tool once, and returns its value, or its exception."""
    runtime(request.param)  # skips the test here, where no boundary takes that for an error of the tool

    def run(name: str, ctx: ToolContext | None = None, policy: JsonObject | None = None, **args: Any) -> Any:
        async def test() -> Any:
            hosts = Hosts()
            try:
                tool = hosted(tmp_path / "bundle", hosts, request.param, name, **(policy or {}))
                return await tool(ctx or context(Progress()), args)
            finally:
                await hosts.close()

        outcome = outcome_of(lambda: asyncio.run(test()))
        return outcome.get() if outcome.error is None else outcome.error

    return run


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cycle", "output.items[0].all contains itself"),
        ("bigint", "output.id is a BigInt"),
        ("number", "output.rows[0].id is 653247040368672800: JavaScript changes integers beyond 2^53"),
        ("nan", "output[1] is NaN"),
        ("map", 'output["a b"] is a Map'),
        ("set", "output is a Set"),
        ("promise", "output.later is a Promise: write `await`"),
        ("function", "output.run is a function"),
        ("undefined", "output[0] is undefined"),
        ("bytes", "output.data is binary data"),
        ("error", "output.error is an Error"),
    ],
)
def test_value_json_changes_is_reported_with_place(call: Callable[..., Any], kind: str, reason: str) -> None:
    raised = call("returns", kind=kind)

    assert raised.code == "E_TOOL_BAD_OUTPUT"
    assert raised.message.startswith(f"What the handler returns is not JSON: {reason}")


def test_values_with_json_form_arrive(call: Callable[..., Any]) -> None:
    shared = {"big": 2**53 - 1, "huge": 1e300, "text": "653247040368672768"}
    buffer = {"type": "Buffer", "data": [97]}
    date = "1970-01-01T00:00:00.000Z"

    assert call("fine") == {"shared": shared, "again": [shared, shared], "date": date, "buffer": buffer}


@pytest.mark.parametrize("number", [2**53, -(2**53), 653247040368672768, 10**40])
def test_integer_javascript_changes_is_refused_before_run(call: Callable[..., Any], number: int) -> None:
    raised = call("echo", rows=[{"an id": number}])

    assert raised.code == "E_TOOL_INVALID_ARGS"
    assert raised.message.startswith(f'input.rows[0]["an id"] is {number}: JavaScript changes')
    exact = {"least": 1 - 2**53, "text": str(number), "float": 1e300}
    assert call("echo", **exact) == exact


def test_half_surrogate_pair_costs_tool_in_javascript_nothing(call: Callable[..., Any]) -> None:
    progress = Progress()
    with structlog.testing.capture_logs() as lines:
        assert call("halves", context(progress)) == {"text": "caf\ufffd", "\ufffd": "kept"}
    assert progress.told == [(1, 2, "\ufffd")]
    assert [line["event"] for line in lines] == ["\ufffd"]


def test_no_host_message_breaks_worker_or_logging(call: Callable[..., Any]) -> None:
    bodies = [
        '"log","id":1,"level":"setLevel","event":"CRITICAL"',
        '"log","id":1,"level":["info"],"event":{"a":1}',
        '"log","id":1',
        '"log","id":0,"level":{},"event":[]',
        '"progress","id":1,"args":["x",1,2]',
        '"progress","id":1,"args":[1,2,"a",4]',
        '"progress","id":1,"args":{}',
        '"progress","id":1,"args":[1e999,NaN,{]',
        '"ask","id":1,"ask":"x","method":[],"args":5',
        '"ask","id":1,"ask":1,"method":[],"args":5',
        '"ask","id":1',
        '"pong","id":1',
        '"unheard","id":1',
        '"pending","id":9,"value":{"handle":"of no call"}',
    ]
    with structlog.testing.capture_logs() as lines:
        assert call("says", frames=[f'{{"t":{body}}}' for body in bodies]) == "done"
    assert [line["event"] for line in lines] == ["CRITICAL", "{'a': 1}", "[]"]
    assert {line["log_level"] for line in lines} == {"info"}


def test_javascript_tool_cannot_pretend_to_await_approval(call: Callable[..., Any]) -> None:
    value = '{"handle":"h","is_approval":true,"other":1}'
    pending = call("says", frames=[f'{{"t":"pending","id":1,"value":{value}}}'])
    assert (pending.handle, pending.is_approval) == ("h", False)


def test_huge_error_from_host_is_shortened(call: Callable[..., Any]) -> None:
    raised = call("fails", size=6_000_000)
    assert raised.message.startswith("The handler's error takes 6000")


def emitter() -> tuple[OutputEmitter[bytes], list[bytes]]:
    """Return what takes output, and the list where it posts it; no post is ever answered."""
    posts: list[bytes] = []
    return OutputEmitter({"attempt": 1}, bytes, lambda post, _: posts.append(post), lambda *_: None), posts


def emitted(emit: OutputEmitter[bytes], posts: list[bytes]) -> list[JsonObject]:
    emit.flush()
    return [event for post in posts for event in serializer.decode(post)]


def test_javascript_tool_output_arrives_whole_and_ordered(call: Callable[..., Any]) -> None:
    emit, posts = emitter()
    refused = call("emits", context(Progress(), emit), chunks=30_000)

    chunks = [event["chunk"] for event in emitted(emit, posts)]
    assert "".join(chunk for chunk in chunks if isinstance(chunk, str)) == "".join(
        f"{number} " for number in range(30_000)
    )
    assert chunks[-2:] == [{"done": True}, None]
    assert [reason.partition(";")[0] for reason in refused] == [
        "emit: the chunk takes 65537 bytes",
        "emit: the chunk is a BigInt: return String(…) of it",
        "emit: the chunk takes 80004 bytes",
    ]


def test_output_that_nobody_follows_is_checked_alone(call: Callable[..., Any]) -> None:
    assert len(call("emits", context(Progress()), chunks=1)) == 3


def test_excess_output_of_javascript_tool_is_cut(call: Callable[..., Any]) -> None:
    emit, posts = emitter()
    assert call("emitsMuch", context(Progress(), emit)).message == "too much"

    events = emitted(emit, posts)
    assert sum(len(event.get("chunk", "")) for event in events) == MOST_EMITTED_BYTES
    assert events[-1]["truncated"] is True


def test_dead_hosts_output_is_void_after_restart(call: Callable[..., Any], tmp_path: Path) -> None:
    emit, posts = emitter()
    policy: JsonObject = {"idempotent": True}
    assert call("emitsAndDies", context(Progress(), emit), policy, mark=str(tmp_path / "mark")) == "done"

    told = [(event["type"], event.get("chunk")) for event in emitted(emit, posts)]
    # what may begin a secret is held back, and other tests of this process make some known
    assert told == [("tool_output", "first."), ("tool_restart", None), ("tool_output", "again.")]


def test_host_report_flood_ends_with_last_report(call: Callable[..., Any]) -> None:
    progress = Progress()
    with structlog.testing.capture_logs() as lines:
        assert call("floods", context(progress), reports=20_000) == "done"
    assert progress.told[-1][0] == 19_999
    assert len(progress.told) < 20_000
    assert any("came too fast" in line["event"] for line in lines)


def test_isolated_host_reaches_no_agents_whatever_it_asks(call: Callable[..., Any]) -> None:
    asked = list[Any]()

    class Agents:
        async def send(self, *given: Any) -> None:
            asked.append(given)

    ctx = replace(context(Progress()), _reach=lambda: cast(Any, Agents()))
    call("asks", ctx, {"isolation": "process"})
    assert asked == []
    call("asks", ctx)
    assert asked == [("x",)]


@pytest.mark.parametrize(
    ("name", "parts"), [("causes", ["refused", "no route"]), ("parts", ["first part", "second part"])]
)
def test_causes_of_error_are_shown_with_it(call: Callable[..., Any], name: str, parts: list[str]) -> None:
    raised = call(name)

    assert all(
        f"Caused by: {'' if part == 'no route' else 'Error: '}{part}" in raised.description.traceback
        for part in parts
    )
