"""Loading the extensions of an agent: all of them, or none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.errors import ConfigError, ExtensionInitError, ExtensionLoadError
from tests.unit.goondan_tasks.bundle.writing import write
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.api import ExtensionServices
from workers.extensions.events import EventListeners
from workers.extensions.loader import ExtensionLoader
from workers.extensions.pipelines import AgentPipelines
from workers.extensions.state import MemoryState
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.entry_files import EntryFiles
from workers.tools.registry import Registry
from workers.v1.extension_api import v1_api

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: first }
spec: { entry: ./first.py, config: { said: hello } }
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: second }
spec: { entry: ./second.py }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { extensions: [Extension/first, Extension/second] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: planner }
spec: { extensions: [Extension/first] }
"""
FIRST = """\
def register(api, config):
    api.pipeline.register("toolCall", lambda ctx: ctx.next())
    api.events.on("tool.called", print)
    item = {"name": f"{api.agent_name}__{api.extension.name}", "description": config["said"]}
    api.tools.register(item, lambda ctx, input: 1)
"""
SECOND = """\
import asyncio

async def register(api):
    await asyncio.sleep(0)
    api.pipeline.register("toolCall", lambda ctx: ctx.next())
    api.tools.register({"name": "second__tool"}, lambda ctx, input: 2)
"""


@pytest.fixture
def event_loop() -> Iterator[EventLoopThread]:
    event_loop = EventLoopThread()
    event_loop.start()
    yield event_loop
    event_loop.stop()


class Process:
    """What a worker process has of it."""

    def __init__(self, bundle: Bundle, event_loop: EventLoopThread, seconds: float) -> None:
        self.registry = Registry(bundle, Isolation(Children(), ""), HostedTools(Hosts(), Path(), ""))
        self.pipelines = AgentPipelines()
        self.events = EventListeners(event_loop.submit)
        services = ExtensionServices(
            self.pipelines, self.registry.dynamic, self.events, MemoryState(), self.registry.catalog, v1_api
        )
        files = EntryFiles(seconds)
        self.loader = ExtensionLoader(bundle, services, event_loop, files, self.registry.hosted, seconds)

    def tools(self, agent: str) -> list[str]:
        return [item.name for item in self.registry.items(agent)]


def process(
    tmp_path: Path, event_loop: EventLoopThread, second: str = SECOND, *, seconds: float = 30
) -> Process:
    files = {"goondan.yaml": BUNDLE, "first.py": FIRST, "second.py": second}
    return Process(load_bundle(write(tmp_path, files)), event_loop, seconds)


def test_extensions_register_in_declared_order_per_agent(tmp_path: Path, event_loop: EventLoopThread) -> None:
    worker = process(tmp_path, event_loop)

    worker.loader.load("coder")
    worker.loader.load("planner")

    assert [layer.name for layer in worker.pipelines.layers("coder", "toolCall")] == [
        "first.<lambda>",
        "second.<lambda>",
    ]
    assert worker.tools("coder") == ["coder__first", "second__tool"]
    assert worker.tools("planner") == ["planner__first"]
    assert worker.registry.items("coder")[0].description == "hello"


def test_agents_extensions_register_once(tmp_path: Path, event_loop: EventLoopThread) -> None:
    worker = process(tmp_path, event_loop)

    worker.loader.load("coder")
    worker.loader.load("coder")

    assert len(worker.pipelines.layers("coder", "toolCall")) == 2


@pytest.mark.parametrize(
    ("second", "error", "said"),
    [
        ("import nowhere_to_be_found\n", ExtensionLoadError, "second.py:1: importing the file raises Module"),
        ("x = 1\n", ExtensionLoadError, "does not define 'register'"),
        ("def register(api)\n    pass\n", ExtensionLoadError, "second.py:1: expected ':'"),
        (
            "import sys\nsys.exit(3)\n",
            ExtensionLoadError,
            "second.py:2: importing the file raises SystemExit",
        ),
        ("def register(api):\n    {}['url']\n", ExtensionInitError, "register raised KeyError: 'url'"),
        ("def register(api):\n    exit(3)\n", ExtensionInitError, "register raised SystemExit: 3"),
        ("async def register(api):\n    1 / 0\n", ExtensionInitError, "second.py:2"),
        ("def register(api):\n    raise StopIteration\n", ExtensionInitError, "raised StopIteration"),
    ],
)
def test_failed_extension_is_named_and_all_undone(
    tmp_path: Path, event_loop: EventLoopThread, second: str, error: type[ConfigError], said: str
) -> None:
    worker = process(tmp_path, event_loop, second)

    with pytest.raises(error, match="Extension 'second' of agent 'coder': ") as first:
        worker.loader.load("coder")

    assert said in first.value.message
    assert worker.pipelines.layers("coder", "toolCall") == ()
    assert worker.tools("coder") == []
    assert not worker.events.has("coder", "tool.called")
    with pytest.raises(error):  # and it stays so
        worker.loader.load("coder")
    worker.loader.load("planner")


@pytest.mark.parametrize(
    "second",
    [
        "import threading\ndef register(api):\n    threading.Event().wait(60)\n",
        "import asyncio\nasync def register(api):\n    await asyncio.sleep(60)\n",
    ],
)
def test_hanging_extension_is_given_up(tmp_path: Path, event_loop: EventLoopThread, second: str) -> None:
    with pytest.raises(ExtensionInitError, match=r"register did not end within 1\.5 s"):
        process(tmp_path, event_loop, second, seconds=1.5).loader.load("coder")


def test_file_that_hangs_is_given_up(tmp_path: Path, event_loop: EventLoopThread) -> None:
    second = "import threading\nthreading.Event().wait(60)\n"
    with pytest.raises(ExtensionLoadError, match=r"does not end within 1\.5 s"):
        process(tmp_path, event_loop, second, seconds=1.5).loader.load("coder")


REGISTRATIONS: list[Any] = [
    ("api.pipeline.register('toolcall', print)", "turn, step, toolCall"),
    ("api.pipeline.register('toolCall', lambda ctx, next: next(ctx))", "ctx.next() runs"),
    ("api.tools.register({'name': 'weather'}, print)", "write <tool>__<export>"),
    ("api.tools.register({'name': 'goondan__step'}, print)", "the system's own"),
    (
        "api.tools.register({'name': 'a__b', 'params': {}}, print)",
        "no field 'params'. Did you mean 'parameters'",
    ),
    (
        "api.tools.register({'name': 'a__b', 'parameters': {'type': 'objekt'}}, print)",
        'objekt" is not a type',
    ),
    ("api.tools.register({}, print)", "name: is missing"),
    ("api.tools.register('a__b', print)", "a dict or a CatalogItem, not str"),
    ("api.tools.register({'name': 'a__b'}, {})", "must be a function, not dict"),
    ("api.tools.register({'name': 'a__b'}, lambda input: 1)", "cannot be called with (ctx, input)"),
    (
        "api.tools.register({'name': 'a__b'}, lambda c, i: 1, policy={'maxConcurrency': 1})",
        "no field 'maxConcurrency'",
    ),
    (
        "api.tools.register({'name': 'a__b'}, lambda c, i: 1, policy={'timeoutSeconds': '5'})",
        "timeoutSeconds must be a number, not",
    ),
    (
        "api.tools.register({'name': 'a__b'}, lambda c, i: 1, policy={'retry': {'max': 2}})",
        "only an idempotent tool may be retried",
    ),
    (
        "__import__('goondan_tasks.contract.messages').contract.messages.ToolCall.from_wire({})",
        "register raised ValidationError: toolCallId: is missing; toolName: is missing",
    ),
    ("api.events.on('tool.called', 'print')", "a listener is a function, not str"),
    ("api.state.set('key', 1)", "name the instance_key"),
    ("api.state.set('key', {1, 2}, instance_key='i')", "set"),
    ("api.state.set(1, 1, instance_key='i')", "kept under text"),
]


@pytest.mark.parametrize(("line", "said"), REGISTRATIONS, ids=[line for line, _ in REGISTRATIONS])
def test_wrong_registration_is_reported_with_its_line(
    tmp_path: Path, event_loop: EventLoopThread, line: str, said: str
) -> None:
    worker = process(tmp_path, event_loop, f"def register(api):\n    {line}\n")

    with pytest.raises(ExtensionInitError) as raised:
        worker.loader.load("coder")

    assert said in raised.value.message
    assert "second.py:2" in raised.value.message
