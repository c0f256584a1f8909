"""What tools emit while they run arrives where their Turn or call is followed."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from goondan_tasks.client import Client, FollowedEvent, ToolEmitted, ToolRestarted, TurnEnded
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.javascript_runtimes import runtime

PATIENCE = 60

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: shell }
spec:
  entry: ./shell.py
  exports:
    - { name: thread, description: Emits. }
    - { name: loop, description: Emits. }
    - { name: apart, description: Emits., isolation: process }
    - { name: flaky, description: Emits., idempotent: true, retry: { max: 2, backoffSeconds: 0.05 } }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: script }
spec: { entry: ./script.ts, exports: [{ name: counts, description: Emits. }] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { entry: ./coder.py, tools: [Tool/shell, Tool/script] }
"""
SHELL = """\
import asyncio
import time
from pathlib import Path


def thread(ctx, input):
    ctx.emit("begins ")
    while not Path(input["gate"]).exists():
        time.sleep(0.01)
    ctx.emit("ends")
    ctx.emit({"rows": 2})
    return "thread"


async def loop(ctx, input):
    ctx.emit("begins ")
    while not Path(input["gate"]).exists():
        await asyncio.sleep(0.01)
    ctx.emit("ends")
    ctx.emit({"rows": 2})
    return "loop"


def flaky(ctx, input):
    mark = Path(input["gate"])
    if not mark.exists():
        mark.touch()
        ctx.emit("void")
        raise ValueError("once")
    ctx.emit("valid")
    return "flaky"


handlers = {"thread": thread, "loop": loop, "apart": thread, "flaky": flaky}
"""
SCRIPT = """\
import { existsSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import type { ToolHandler } from '@goondan/types';

const counts: ToolHandler = async (ctx, { gate }: { gate: string }) => {
  ctx.emit('begins ');
  while (!existsSync(gate)) {
    await setTimeout(10);
  }
  ctx.emit('ends');
  ctx.emit({ rows: 2 });
  return 'script';
};

export const handlers = { counts };
"""
CODER = """\
async def handle(ctx, event):
    result = await ctx.call(event.input["tool"], {"gate": event.input["gate"]})
    return result.output
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder = tmp_path_factory.mktemp("emit")
    files = {"goondan.yaml": BUNDLE, "shell.py": SHELL, "script.ts": SCRIPT, "coder.py": CODER}
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    with LocalStack(folder, environment={"GOONDAN_JAVASCRIPT": "node"}) as stack:
        yield stack


def outputs(events: Iterable[FollowedEvent]) -> list[ToolEmitted | ToolRestarted]:
    return [one.event for one in events if isinstance(one.event, ToolEmitted | ToolRestarted)]


def text(told: Iterable[ToolEmitted | ToolRestarted]) -> str:
    chunks = (one.chunk for one in told if isinstance(one, ToolEmitted))
    return "".join(chunk for chunk in chunks if isinstance(chunk, str))


def begin_turn(client: Client, tool: str, gate: Path, keep: float | None = 600) -> str:
    asked = {"tool": tool, "gate": str(gate)}
    return client.request("coder", asked, instance_key=tool, is_async=True, keep=keep).id


def begin_call(client: Client, tool: str, gate: Path) -> str:
    return client.submit("coder", tool, {"gate": str(gate)}, keep=600).id


@pytest.mark.parametrize("begin", [begin_turn, begin_call], ids=["turn", "call"])
@pytest.mark.parametrize("tool", ["shell__thread", "shell__loop", "shell__apart", "script__counts"])
def test_followers_see_tool_emissions_live_and_later(
    stack: LocalStack, tmp_path: Path, tool: str, begin: Callable[[Client, str, Path], str]
) -> None:
    if tool.startswith("script"):
        runtime("node")
    gate = tmp_path / "gate"
    followed = begin(stack.client, tool, gate)
    events: list[FollowedEvent] = []
    with closing(stack.client.follow(followed)) as following:
        for one in following:
            events.append(one)
            if isinstance(one.event, ToolEmitted) and not gate.exists():
                assert one.event.chunk == "begins "
                gate.touch()  # the handler waits for its follower
    told = outputs(events)
    assert text(told) == "begins ends"
    assert isinstance(told[-1], ToolEmitted) and told[-1].chunk == {"rows": 2}
    assert {(one.tool, one.attempt) for one in told} == {(tool, 1)}
    assert isinstance(events[-1].event, TurnEnded) and events[-1].event.error is None
    later = list(stack.client.follow(followed))
    assert outputs(later) == told
    assert outputs(stack.client.follow(followed, later[0].cursor)) == told[1:]


def test_output_of_run_that_is_retried_is_void(stack: LocalStack, tmp_path: Path) -> None:
    told = outputs(stack.client.follow(begin_turn(stack.client, "shell__flaky", tmp_path / "mark")))
    assert [(one.type, one.attempt, getattr(one, "chunk", None)) for one in told] == [
        ("tool_output", 1, "void"),
        ("tool_restart", 2, None),
        ("tool_output", 2, "valid"),
    ]


def test_output_is_not_written_if_nobody_follows(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()

    def written() -> int:
        """Return how often anything was added to a stream, or was tried to be."""
        with Redis.from_url(stack.redis_url) as redis:
            stats: Any = redis.info("commandstats")
        found: int = stats.get("cmdstat_xadd", {"calls": 0})["calls"]
        return found

    before = written()
    turn = begin_turn(stack.client, "shell__thread", tmp_path / "gate", keep=None)
    assert outputs(stack.client.follow(turn)) == []
    assert stack.client.pending(turn).result(PATIENCE).output == "thread"
    assert written() == before + 1  # at the end of each Turn, whether or not it has a stream


def test_command_follow_prints_output(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "gate").touch()
    call = begin_call(stack.client, "shell__thread", tmp_path / "gate")
    shown = goondan("follow", call, "--json", env=environment(redis_url=stack.redis_url))
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    assert "".join(event["chunk"] for event in events[:-2]) == "begins ends"
    assert [event["type"] for event in events[-2:]] == ["tool_output", "end"]
