"""Names that look like ours: agents, Tools, exports and instances of every such name work end to end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.queues import agent_of, call_queue, events_queue, is_events_queue, wake_up_key
from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

PATIENCE = 60.0

#: suffixes and prefixes of our keys and queues, words of Celery, names that file systems or Python reserve
NAMES = [
    "events", "bell", "default", "goondan", "model-x", "0", "1", "con", "agent", "agents", "call", "due",
    "none", "null", "true", "self", "step", "celery", "kombu", "unacked", "workspace", "messages", "system",
]  # fmt: skip
#: only instances can have these
KEYS = [
    *NAMES,
    "client",
    "..",
    ".",
    "a/b",
    "agent.x.events",
    "goondan:call:1",
    "*",
    "__proto__",
    "한글 1",
    "-x",
]
#: the bundle may not declare Tools of the system's name
TOOLS = [name for name in NAMES if name != "goondan"]

TOOL = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: "{name}" }}
spec:
  entry: ./tool.py
  exports: [{{ name: "{name}", parameters: {{ type: object }} }}]
---
"""
AGENT = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: "{name}" }}
spec: {{ entry: ./agent.py, tools: [{tools}] }}
---
"""
ENTRY = """\
async def handle(ctx, event):
    return [ctx.agent_name, ctx.instance_key, event.input]
"""
HANDLERS = """\
def run(ctx, input):
    return [ctx.agent_name, ctx.instance_key, input["n"], ctx.workdir.is_dir()]

handlers = {{name: run for name in {names}}}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("names")
    write_bundle(folder)
    with LocalStack(folder, agents=NAMES) as stack:
        yield stack.client


def write_bundle(folder: Path) -> None:
    tools = ", ".join(f'"Tool/{name}"' for name in TOOLS)
    agents = ", ".join(f'"Agent/{name}"' for name in NAMES)
    swarm = 'kind: Swarm\nmetadata: { name: "default" }\n'
    swarm += f'spec: {{ entryAgent: "Agent/events", agents: [{agents}] }}\n'
    resources = [
        *(TOOL.format(name=name) for name in TOOLS),
        *(AGENT.format(name=name, tools=tools) for name in NAMES),
        f"apiVersion: goondan.ai/v1\n{swarm}",
    ]
    (folder / "goondan.yaml").write_text("".join(resources), "utf-8")
    (folder / "tool.py").write_text(HANDLERS.format(names=TOOLS), "utf-8")
    (folder / "agent.py").write_text(ENTRY, "utf-8")


def test_any_agent_name_allows_calls_and_events(client: Client) -> None:
    calls = [client.submit(name, "con__con", {"n": 1}, instance_key="i") for name in NAMES]
    events = {name: client.request(name, 2, instance_key="i", is_async=True) for name in NAMES}

    assert [call.result(PATIENCE).output for call in calls] == [[name, "i", 1, True] for name in NAMES]
    answers = [client.pending(event.id).result(PATIENCE).output for event in events.values()]
    assert answers == [[name, "i", 2] for name in NAMES]


def test_tool_of_every_name_is_called(client: Client) -> None:
    calls = [client.submit("events", f"{name}__{name}", {"n": 3}, instance_key="i") for name in TOOLS]

    assert [call.result(PATIENCE).output for call in calls] == [["events", "i", 3, True]] * len(TOOLS)


def test_any_instance_name_has_own_workdir_and_mailbox(client: Client) -> None:
    calls = [client.submit("default", "con__con", {"n": 4}, instance_key=key) for key in KEYS]
    events = [client.request("events", 5, instance_key=key, is_async=True) for key in KEYS]

    assert [call.result(PATIENCE).output for call in calls] == [["default", key, 4, True] for key in KEYS]
    answers = [client.pending(event.id).result(PATIENCE).output for event in events]
    assert answers == [["events", key, 5] for key in KEYS]
    assert set(KEYS) <= {one.instance_key for one in client.instances()}


def test_queues_of_any_name_show_their_agent(client: Client) -> None:
    wait_until(lambda: {one.agent for one in client.queues()} >= set(NAMES))
    assert all(one.backlog == 0 for one in client.queues())


@pytest.mark.parametrize("name", NAMES)
def test_queue_tells_its_agent_and_its_kind(name: str) -> None:
    assert (agent_of(call_queue(name)), agent_of(events_queue(name))) == (name, name)
    assert (is_events_queue(call_queue(name)), is_events_queue(events_queue(name))) == (False, True)
    assert agent_of(wake_up_key(call_queue(name))) != name or name == "bell"
