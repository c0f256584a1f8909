"""Agents that think: what a Step costs beside its model, and many Turns that wait for theirs."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, at_most, percentile
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import AsyncClient
from goondan_tasks.testing import LocalStack
from workers.thinking.model_request import ModelRequest
from workers.thinking.providers import ModelProvider

AGENT = "thinker"
TURNS = 30
CALLS = 10
WAITING_TURNS = 200
WAITING_CALLS = 2
WAIT_SECONDS = 1.0

_STEP, _MODEL, _LOOP = "a Step", "of it the request, by the library", "the loop's own part"
_ROUND = f"a round of {WAITING_TURNS} Turns whose model takes {WAIT_SECONDS:g} s"

_TEXT = f"""\
One worker process with 8 slots, and a server of chat completions of its own, which asks for one tool call a
Step and then answers. {TURNS} Turns of {CALLS + 1} Steps one after the other, with a model that answers at
once and a tool that does nothing: a Step is the request to the model, the tool call, and what opens and keeps
both. *The request* is the same request made by the library alone, in a process of its own: it is no cost of
the loop. Then {WAITING_TURNS} Turns at once whose model takes {WAIT_SECONDS:g} s."""

_BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Model
metadata: {{ name: at-once }}
spec: {{ provider: openai-chat, model: any, baseUrl: "{url}", apiKey: {{ value: none }} }}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: noop }}
spec: {{ entry: ./noop.py, exports: [{{ name: run, parameters: {{ type: object }} }}] }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: {agent} }}
spec: {{ modelConfig: {{ modelRef: Model/at-once }}, tools: [Tool/noop] }}
"""
_NOOP = "def run(ctx, input):\n    return None\n\n\nhandlers = {'run': run}\n"


@contextmanager
def _model(calls: int, seconds: float) -> Iterator[str]:
    """Start a model's server; yield its URL."""
    argv = [sys.executable, "-m", "benchmarks.programs.model_server", str(calls), str(seconds)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.kill()


@contextmanager
def _stack(url: str) -> Iterator[LocalStack]:
    with tempfile.TemporaryDirectory(prefix="goondan-bench-") as folder:
        (Path(folder) / "goondan.yaml").write_text(_BUNDLE.format(url=url, agent=AGENT), "utf-8")
        (Path(folder) / "noop.py").write_text(_NOOP, "utf-8")
        with LocalStack(folder) as stack:
            stack.client.request(AGENT, "warm", instance_key="warm", timeout=60)
            yield stack


def measure(bench: Bench) -> Section:
    """Measure a Step of an agent that thinks, and 200 Turns that wait for their model."""
    steps, rounds = Samples("p50, ms"), Samples("seconds")
    for _ in range(bench.options.few_rounds):
        with _model(CALLS, 0) as url, _stack(url) as stack:
            whole = percentile([_turn(stack, number) for number in range(TURNS)], 50)
            alone = percentile(asyncio.run(_library_alone(stack.bundle)), 50)
        steps.add(_STEP, whole)
        steps.add(_MODEL, alone)
        steps.add(_LOOP, whole - alone)
        with _model(WAITING_CALLS, WAIT_SECONDS) as url, _stack(url) as stack:
            rounds.add(_ROUND, asyncio.run(_turns_at_once(stack)) / (WAITING_CALLS + 1))
    aims = [
        at_most("p50 of the loop's own part of a Step", steps.median(_LOOP), 10, "ms"),
        at_most(_ROUND, rounds.median(_ROUND), 1.5, "s"),
    ]
    return Section("Agents that think", _TEXT, [steps.table(), rounds.table()], aims)


def _turn(stack: LocalStack, number: int) -> float:
    """Return the milliseconds of a Step of one Turn."""
    begun = time.perf_counter()
    stack.client.request(AGENT, "go", instance_key=f"one-{number}", timeout=60)
    return (time.perf_counter() - begun) / (CALLS + 1) * 1000


async def _library_alone(bundle: Path) -> list[float]:
    """Return the milliseconds of requests as a Turn makes them, without a worker."""
    provider = ModelProvider(load_bundle(bundle).models["at-once"])
    function = {"name": "noop__run", "description": "", "parameters": {"type": "object"}}
    messages = [{"role": "user", "content": "go"}]
    taken: list[float] = []
    for number in range(TURNS):
        step = number % CALLS
        call = {"toolCallId": f"call_{step}", "toolName": "noop__run"}
        history = [
            *messages,
            *(
                {"role": role, "content": [{"type": kind, **call, field: value}]}
                for _ in range(step)
                for role, kind, field, value in (
                    ("assistant", "tool-call", "input", {}),
                    ("tool", "tool-result", "output", {"type": "json", "value": None}),
                )
            ),
        ]
        begun = time.perf_counter()
        await provider.ask(
            ModelRequest("", tuple(history), ({"type": "function", "function": function},), {})
        )
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


async def _turns_at_once(stack: LocalStack) -> float:
    """Return the seconds until all Turns have ended."""
    async with AsyncClient(stack.client) as client:
        begun = time.perf_counter()
        asked = (
            client.request(AGENT, "go", instance_key=f"at-once-{number}", timeout=120)
            for number in range(WAITING_TURNS)
        )
        await asyncio.gather(*asked)
        return time.perf_counter() - begun
