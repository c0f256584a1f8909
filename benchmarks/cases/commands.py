"""The command line: commands, the import of the client, a worker's start, a reload of ``goondan dev``."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, at_most
from benchmarks.lanes import LaneFailed
from broker_config.process_group import end_processes
from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack

AGENT, TOOL = "teller", "told__number"
PATIENCE_SECONDS = 60
#: what a person waits for anyway: starts and reloads are seen this exactly
_LOOK_SECONDS = 0.01

_START, _RELOAD = "a worker's start", "a reload of `goondan dev`"
_IMPORT = "`import goondan_tasks.client`"

_TEXT = f"""\
A bundle of one agent with one `@tool` function, whose checks are kept from the run before. Processor time is
that of the whole process, from its start to its end; of the import it is that of the statement alone, and its
memory what the process has more of after it. {_START.capitalize()} lasts until Redis knows that the worker
takes calls, and its processor time is counted until then. {_RELOAD.capitalize()} lasts from the moment at
which the tool's file is written to the first answer of its new code; calls follow one another meanwhile."""

_BUNDLE = f"""\
apiVersion: goondan.ai/v1
kind: Package
metadata: {{ name: told }}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: told }}
spec: {{ entry: ./told.py, exports: auto }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: {AGENT} }}
spec: {{ tools: [Tool/told] }}
"""
_PYTHON_FILE = '''\
from goondan_tasks.tool_api import tool


@tool
def number() -> int:
    """Tell the number."""
    return {number}
'''
_IMPORTING = """\
import psutil, time
before, begun = psutil.Process().memory_info().rss, time.process_time()
import goondan_tasks.client
print((time.process_time() - begun) * 1000, (psutil.Process().memory_info().rss - before) / 2**20)
"""
_GOONDAN = str(Path(sys.executable).with_name("goondan"))


def measure(bench: Bench) -> Section:
    """Measure commands, the import of the client, a worker's start and a reload of goondan dev."""
    processor, memory = Samples("processor time, ms"), Samples("memory, MiB")
    wall = Samples("seconds")
    with tempfile.TemporaryDirectory(prefix="goondan-bench-") as place:
        bundle = Path(place) / "told"
        bundle.mkdir()
        (bundle / "goondan.yaml").write_text(_BUNDLE, "utf-8")
        _write(bundle, 0)
        with LocalStack(bundle) as stack:
            commands = _commands(stack)
            environment = _environment(stack)
            for words in commands.values():
                _processor_ms(words, environment)  # what is cached is there from now on
            for _ in range(bench.options.rounds):
                for name, words in commands.items():
                    processor.add(name, _processor_ms(words, environment))
                took, size = _import(environment)
                processor.add(_IMPORT, took)
                memory.add(_IMPORT, size)
                took, seconds = _start(stack)
                processor.add(_START, took)
                wall.add(_START, seconds)
        with _dev(bundle, Path(place)) as client:
            for number in range(1, bench.options.rounds + 1):
                wall.add(_RELOAD, _reload(client, bundle, number))
    aims = [
        at_most(_START, wall.median(_START), 2, "s"),
        at_most(_RELOAD, wall.median(_RELOAD), 1, "s"),
    ]
    return Section("The command line", _TEXT, [processor.table(), memory.table(), wall.table()], aims)


def _write(bundle: Path, number: int) -> None:
    (bundle / "told.py").write_text(_PYTHON_FILE.format(number=number), "utf-8")


def _commands(stack: LocalStack) -> dict[str, tuple[str, ...]]:
    call = stack.client.submit(AGENT, TOOL, {})
    call.result(PATIENCE_SECONDS)
    words = (
        ("--help",),
        ("queues",),
        ("call", AGENT, TOOL),
        ("trace", call.id),
        ("validate", str(stack.bundle)),
    )
    return {f"`goondan {one[0]}`": (_GOONDAN, *one) for one in words}


def _environment(stack: LocalStack) -> dict[str, str]:
    settings = {"REDIS_URL": stack.redis_url, "BUNDLE": stack.bundle, "STATE_ROOT": stack.state_root}
    return _inherited() | {f"GOONDAN_{name}": str(value) for name, value in settings.items()}


def _inherited() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("GOONDAN_")}


def _processor_ms(words: tuple[str, ...], environment: Mapping[str, str]) -> float:
    """Return the processor time of a command and of what it has started, in ms."""
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise LaneFailed(f"{' '.join(words)} ended with {process.returncode}.")
    return (usage.ru_utime + usage.ru_stime) * 1000


def _import(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the processor time of the import in ms, and its memory in MiB."""
    told = subprocess.check_output([sys.executable, "-c", _IMPORTING], env=environment, text=True)
    took, size = map(float, told.split())
    return took, size


def _start(stack: LocalStack) -> tuple[float, float]:
    """Start a worker; return its processor time in ms, and its seconds, until it takes calls."""
    begun = time.perf_counter()
    worker = stack.start_worker()
    seconds = time.perf_counter() - begun
    times = psutil.Process(worker.pid).cpu_times()
    stack.stop_worker(worker)
    return sum((times.user, times.system, times.children_user, times.children_system)) * 1000, seconds


@contextmanager
def _dev(bundle: Path, place: Path) -> Iterator[Client]:
    """Run ``goondan dev``; yield a client of its Redis."""
    environment = {**_inherited(), "GOONDAN_STATE_ROOT": str(place / "state")}
    words = [_GOONDAN, "dev", str(bundle), "--no-flower", "--json"]
    with (
        (place / "dev.log").open("wb") as log,
        subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            told = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
            with Client.connect(told["redisUrl"], bundle=bundle) as client:
                client.call(AGENT, TOOL, {}, timeout=PATIENCE_SECONDS)
                yield client
        finally:
            end_processes([process], PATIENCE_SECONDS)


def _reload(client: Client, bundle: Path, number: int) -> float:
    """Return the seconds from a change of the tool to its first new answer."""
    time.sleep(1)  # as people do, whose changes do not follow one another at once
    begun = time.perf_counter()
    _write(bundle, number)
    while client.call(AGENT, TOOL, {}, timeout=PATIENCE_SECONDS).output != number:
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            raise LaneFailed(f"No new answer within {PATIENCE_SECONDS} s.")
        time.sleep(_LOOK_SECONDS)
    return time.perf_counter() - begun
