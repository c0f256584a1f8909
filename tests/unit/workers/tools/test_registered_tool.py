"""Agents that handle their events in a worker."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.contract.names import EVENT_TOOL
from tests.unit.goondan_tasks.bundle.writing import write
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registry import Registry

AGENTS = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { entry: ./coder.py }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: outsider }
"""


def registry(tmp_path: Path, text: str) -> Registry:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": AGENTS, "coder.py": text}))
    return Registry(bundle, Isolation(Children(), ""), HostedTools(Hosts(), Path(), ""))


@pytest.mark.parametrize(
    ("text", "is_async"),
    [
        ("def handle(ctx, event): ...\n", False),
        ("async def handle(ctx, event, *, more=None): ...\n", True),
        ("class Brain:\n    def __call__(self, ctx, event): ...\nhandle = Brain()\n", False),
    ],
)
def test_agent_with_entry_has_its_handle(tmp_path: Path, text: str, is_async: bool) -> None:
    tools = registry(tmp_path, text)

    assert tools.handles_events("coder")
    assert tools.tool("coder", EVENT_TOOL).is_async is is_async


def test_agent_without_entry_has_none(tmp_path: Path) -> None:
    tools = registry(tmp_path, "def handle(ctx, event): ...\n")

    assert not tools.handles_events("outsider")
    with pytest.raises(HandoffError, match="Agent 'outsider' has no entry"):
        tools.tool("outsider", EVENT_TOOL)
