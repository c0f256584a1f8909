"""The hosts of tools in JavaScript: which calls share one, and when they end."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from goondan_tasks import sandbox
from goondan_tasks.bundle import load_bundle
from tests.javascript_runtimes import NAMES, runtime
from tests.unit.workers.mcp.tool_contexts import Progress, context
from tests.waiting import wait_until
from workers.javascript import tools
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.confinement import Confinement

needs_bubblewrap = pytest.mark.skipif(sandbox.fault() is not None, reason="no sandbox here")


def hosted(folder: Path, hosts: Hosts, name: str, **policy: object) -> tools.HostedTool:
    """Return the tool of a new bundle; it returns the number of its process."""
    export = {"name": "pid", "parameters": {"type": "object"}, **policy}
    documents = [
        {"apiVersion": "goondan.ai/v1", "kind": kind, "metadata": {"name": called}, "spec": spec}
        for kind, called, spec in (
            ("Tool", "own", {"entry": "./own.mjs", "exports": [export]}),
            ("Agent", "clerk", {"tools": ["Tool/own"]}),
        )
    ]
    folder.mkdir()
    (folder / "goondan.yaml").write_text(yaml.safe_dump_all(documents), "utf-8")
    (folder / "own.mjs").write_text("export const handlers = { pid: () => process.pid };", "utf-8")
    bundle = load_bundle(folder)
    made = HostedTools(hosts, folder, "https://help/", Confinement(bundle), runtime(name).name)
    return made.tool(bundle.bound_tools("clerk")["own__pid"])


@needs_bubblewrap
@pytest.mark.parametrize("name", NAMES)
def test_the_host_of_an_instance_in_a_sandbox_ends_when_it_is_idle(
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
