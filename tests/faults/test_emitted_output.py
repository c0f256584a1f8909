"""What tools emit while their workers are killed: followers know which output is void."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import FollowedEvent, ToolEmitted, ToolRestarted, TurnEnded
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, Say
from tests.waiting import wait_until

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: build }
spec:
  entry: ./build.py
  exports:
    - { name: plain, idempotent: true }
    - { name: apart, idempotent: true, isolation: process }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: script }
spec: { entry: ./script.ts, exports: [{ name: plain, idempotent: true }] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: [Tool/build, Tool/script] }
"""
LINES = 200
BUILD = f"""\
import time


def build(ctx, input):
    for line in range({LINES}):
        ctx.emit(f"line {{line}}\\n")
        time.sleep(0.02)
    return "built"


handlers = {{"plain": build, "apart": build}}
"""
SCRIPT = f"""\
import {{ setTimeout }} from 'node:timers/promises';
export const handlers = {{
  plain: async (ctx) => {{
    for (let line = 0; line < {LINES}; line += 1) {{
      ctx.emit(`line ${{line}}\\n`);
      await setTimeout(20);
    }}
    return 'built';
  }},
}};
"""
CODER = "async def handle(ctx, event):\n    return (await ctx.call(event.input)).output\n"
TEXT = "".join(f"line {line}\n" for line in range(LINES))

pytestmark = pytest.mark.long


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    files = {"goondan.yaml": BUNDLE, "build.py": BUILD, "script.ts": SCRIPT}
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    with LocalStack(tmp_path, environment=ENVIRONMENT) as stack:
        yield stack


@pytest.mark.parametrize("tool", ["build__plain", "build__apart", "script__plain"])
def test_killed_run_voids_output_and_next_run_is_whole(stack: LocalStack, say: Say, tool: str) -> None:
    call = stack.client.submit("coder", tool, keep=600).id
    heard: list[FollowedEvent] = []
    following = threading.Thread(target=lambda: heard.extend(stack.client.follow(call)))
    following.start()
    wait_until(lambda: sum(isinstance(one.event, ToolEmitted) for one in heard) > 3)
    [worker] = stack.workers
    worker.kill()
    worker.wait()
    stack.start_worker()
    following.join()

    valid, restarts = "", 0
    for one in heard:
        if isinstance(one.event, ToolRestarted):
            valid, restarts = "", restarts + 1
        elif isinstance(one.event, ToolEmitted):
            valid += one.event.chunk
    say([f"{len(heard)} events"])
    assert (valid, restarts) == (TEXT, 1)
    assert isinstance(heard[-1].event, TurnEnded) and heard[-1].event.error is None
    assert [one.event for one in stack.client.follow(call)] == [one.event for one in heard]
