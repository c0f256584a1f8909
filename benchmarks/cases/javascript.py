"""Tools in TypeScript beside the same ones in Python: calls in batches, and many handlers that wait."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench, in_turns
from benchmarks.figures import Samples, Section
from goondan_tasks.machine.javascript import find_runtime
from goondan_tasks.testing import LocalStack

AGENT = "bench"
SLEEPERS = 500
SECONDS = 1.0
PATIENCE = 120

_TEXT = f"""\
One worker process and its host, a process of {{runtime}}. A batch is submitted by `submit_many`, and its
results are collected. The tools return what they get. Then {SLEEPERS} calls at once, with as many slots,
whose handlers wait {SECONDS:g} s without a thread."""

_BUNDLE = f"""\
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: {AGENT} }}
spec: {{ tools: [Tool/python, Tool/typescript] }}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: python }}
spec: {{ entry: ./tool.py, exports: [{{ name: plain }}, {{ name: async }}, {{ name: sleep }}] }}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: typescript }}
spec: {{ entry: ./tool.ts, exports: [{{ name: plain }}, {{ name: async }}, {{ name: sleep }}] }}
"""
_PYTHON = """\
import asyncio


def plain(ctx, input):
    return input


async def at_once(ctx, input):
    return input


async def sleep(ctx, input):
    await asyncio.sleep(input["seconds"])


handlers = {"plain": plain, "async": at_once, "sleep": sleep}
"""
_TYPESCRIPT = """\
import { setTimeout as sleep } from 'node:timers/promises';

export const handlers = {
  plain: (_ctx: unknown, input: object) => input,
  async: async (_ctx: unknown, input: object) => input,
  sleep: async (_ctx: unknown, input: { seconds: number }) => void (await sleep(input.seconds * 1000)),
};
"""


@contextmanager
def _stack() -> Iterator[LocalStack]:
    with tempfile.TemporaryDirectory(prefix="goondan-bench-") as folder:
        for name, text in (("goondan.yaml", _BUNDLE), ("tool.py", _PYTHON), ("tool.ts", _TYPESCRIPT)):
            (Path(folder) / name).write_text(text, "utf-8")
        with LocalStack(folder, concurrency=SLEEPERS) as stack:
            yield stack


def measure(bench: Bench) -> Section:
    """Measure tools in TypeScript beside those in Python, and 500 of each that wait."""
    batches, sleepers = Samples("calls a second"), Samples("seconds")
    tools = [f"{language}__{kind}" for language in ("python", "typescript") for kind in ("plain", "async")]
    with _stack() as stack:
        for tool in tools:
            _seconds(stack, tool, 20, {"a": 1})
        for tool in in_turns(tools, bench.options.rounds):
            batches.add(tool, bench.options.calls / _seconds(stack, tool, bench.options.calls, {"a": 1}))
        for tool in in_turns(["python__sleep", "typescript__sleep"], bench.options.few_rounds):
            sleepers.add(tool, _seconds(stack, tool, SLEEPERS, {"seconds": SECONDS}))
    runtime = find_runtime(stack.client.settings.javascript)
    name = "neither Node nor Bun" if runtime is None else f"{runtime.name} {runtime.version}"
    return Section("TypeScript", _TEXT.format(runtime=name), [batches.table(), sleepers.table()], [])


def _seconds(stack: LocalStack, tool: str, count: int, args: dict[str, float]) -> float:
    """Return the time from the submission of so many calls to the last result."""
    begun = time.perf_counter()
    pending = stack.client.submit_many([{"agentName": AGENT, "toolName": tool, "args": args}] * count)
    for call in pending:
        result = call.result(timeout=PATIENCE)
        if result.error is not None:
            raise RuntimeError(f"{tool}: {result.error.message}")
    return time.perf_counter() - begun
