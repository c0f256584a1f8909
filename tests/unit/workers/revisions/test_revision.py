"""What one revision of a bundle brings into a process, and that it takes all of it away again."""

import asyncio
import gc
import json
import logging
import os
import re
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from goondan_tasks.authoring.entry import PREFIX, EntryError
from goondan_tasks.contract.errors import ExtensionInitError, ToolNotFoundError
from goondan_tasks.contract.names import EVENT_TOOLS
from goondan_tasks.machine.javascript import find_runtime
from goondan_tasks.revisions.checkouts import clean_checkouts
from tests.processes import runs
from tests.unit.workers.mcp.office import moody
from tests.unit.workers.revisions.revision_machine import AGENT, RevisionMachine, revision_machine
from tests.waiting import wait_until
from workers.mcp import process_board
from workers.revisions.revision import Revision

#: of this version and of the older one, declared and dynamic
TOOLS = ("coat__word", "mirror__look", "heirloom.word", "locket.look")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

TWO_MORE = """\
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: holds }
spec: { entry: ./holds.py }
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: fails }
spec: { entry: ./fails.py }
"""
HOLDS = """\
import pathlib, sys, time

def register(api):
    api.events.on("extension.unloading", lambda event: time.sleep(60))
    api.events.on("extension.unloading", lambda event: sys.exit(1))
    api.events.on("extension.unloading", lambda event: pathlib.Path({mark!r}).touch())
"""
HAT_TOOL = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: hat }
spec:
  entry: ./tools/hat.mjs
  exports:
    - { name: hang, parameters: { type: object } }
    - { name: pid, parameters: { type: object } }
"""
HAT = """\
import { existsSync, writeFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';

export const handlers = {
  async hang(ctx) {
    writeFileSync(`${ctx.workdir}/hanging`, '');
    while (!existsSync(`${ctx.workdir}/go-on`)) await setTimeout(10);
    return process.pid;
  },
  pid: () => process.pid,
};
"""
FAILS = "def register(api):\n    raise ValueError('no')\n"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[RevisionMachine]:
    with revision_machine(tmp_path) as machine:
        yield machine


@dataclass(frozen=True)
class Footprint:
    """What this process holds."""

    modules: int
    loggers: int
    importers: int
    threads: int
    descriptors: int
    tasks: int
    resident_bytes: int

    @classmethod
    def now(cls, machine: RevisionMachine) -> "Footprint":
        gc.collect()
        return cls(
            len(modules_of(machine)),
            sum(name.startswith(PREFIX) for name in logging.Logger.manager.loggerDict),
            len(sys.path_importer_cache),
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
            machine.event_loop.submit(tasks()).result(30),
            int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * PAGE_BYTES,
        )

    def growth(self, machine: RevisionMachine) -> dict[str, int]:
        """Return by how much each part has grown since; what other tests have left may end meanwhile."""
        now, then = asdict(Footprint.now(machine)), asdict(self)
        grown = {name: now[name] - then[name] for name in now if now[name] > then[name]}
        # each of forty revisions had 300 kB of its own
        if grown.get("resident_bytes", 0) < 8_000_000:
            grown.pop("resident_bytes", None)
        return grown


async def tasks() -> int:
    return len(asyncio.all_tasks())


def modules_of(machine: RevisionMachine) -> list[ModuleType]:
    """Return the modules of entries that any revision of the machine's has loaded."""
    cache = str(machine.checkouts.cache)
    modules = [module for name, module in sys.modules.items() if name.startswith(PREFIX)]
    return [module for module in modules if str(module.__file__).startswith(cache)]


def traces(machine: RevisionMachine, revision: Revision) -> list[weakref.ref[Any]]:
    """Refer to what a revision is made of."""
    services, handler = revision.extensions.services, revision.registry.tool(AGENT, "coat__word").handler
    parts = (revision.registry, revision.extensions, revision.steps, revision.executor)
    registered = (services.events, services.pipelines, services.tools, handler)
    return [weakref.ref(part) for part in (*parts, *registered, *modules_of(machine))]


def use(machine: RevisionMachine, word: str, *, isolated: bool) -> list[weakref.ref[Any]]:
    """Make a revision, run calls with it, and close it."""
    revision = machine.revision(word)
    tools = [*TOOLS, *(["box__word"] if isolated else [])]
    assert [machine.call(revision, tool) for tool in tools] == [word] * len(tools)
    assert machine.run(revision, "coat__missing").status == "error"
    left = traces(machine, revision)
    revision.close()
    return left


def remaining(traces: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [found for trace in traces if (found := trace()) is not None]


def test_forty_revisions_leave_nothing_behind(machine: RevisionMachine) -> None:
    left = [trace for number in range(20) for trace in use(machine, f"warm-{number}", isolated=number < 2)]
    before = Footprint.now(machine)

    for number in range(40):
        left += use(machine, f"word-{number}", isolated=number % 20 == 0)
    # a thread that has just ended a call may hold something for another moment
    wait_until(lambda: not remaining(left), show=lambda: remaining(left))
    wait_until(lambda: not before.growth(machine), show=lambda: before.growth(machine))


def test_two_revisions_of_one_file_run_concurrently(machine: RevisionMachine) -> None:
    old, new = machine.revision("old"), machine.revision("new")

    for tool in (*TOOLS, "box__word"):
        assert [machine.call(revision, tool) for revision in (old, new, old)] == ["old", "new", "old"]

    new.close()
    old.close()


def test_call_keeps_code_while_newer_revision_comes_and_goes(
    machine: RevisionMachine, tmp_path: Path
) -> None:
    old = machine.revision("old")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(machine.call, old, "coat__hang")
        wait_until(lambda: list((tmp_path / "state").rglob("hanging")))
        new = machine.revision("new")
        assert machine.call(new, "coat__word") == "new"
        new.close()
        [hanging] = (tmp_path / "state").rglob("hanging")
        hanging.with_name("go-on").touch()
        assert running.result(30) == "old"
    old.close()


def test_reloaded_revision_keeps_modules_after_first_closes(
    machine: RevisionMachine,
) -> None:
    ref = machine.change("same")
    first, second = machine.open(ref), machine.open(ref)
    assert [machine.call(revision, "coat__word") for revision in (first, second)] == ["same", "same"]

    first.close()
    first.close()

    assert machine.call(second, "coat__word") == "same"
    second.close()
    assert modules_of(machine) == []


@pytest.mark.skipif(find_runtime() is None, reason="neither Node nor Bun is installed")
def test_reloaded_revision_keeps_javascript_calls_after_first_closes(
    machine: RevisionMachine, tmp_path: Path
) -> None:
    document = machine.bundle / "goondan.yaml"
    text = document.read_text("utf-8").replace("tools: [", "tools: [Tool/hat, ")
    document.write_text(f"{text}---\n{HAT_TOOL}", "utf-8")
    (machine.bundle / "tools/hat.mjs").write_text(HAT, "utf-8")
    ref = machine.change("same")
    first, second = machine.open(ref), machine.open(ref)
    ends = machine.call(first, "hat__pid")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(machine.call, second, "hat__hang")
        wait_until(lambda: list((tmp_path / "state").rglob("hanging")))

        first.close()

        wait_until(lambda: not runs(ends))
        [hanging] = (tmp_path / "state").rglob("hanging")
        hanging.with_name("go-on").touch()
        stays = running.result(30)
    assert machine.call(second, "hat__pid") == stays
    second.close()
    wait_until(lambda: not runs(stays))


def test_closing_revision_ends_only_its_own_children(machine: RevisionMachine) -> None:
    old, new = machine.revision("old"), machine.revision("new")
    machine.children.limit = 2
    gone, stays = machine.call(old, "box__pid"), machine.call(new, "box__pid")

    old.close()

    assert not runs(gone)
    assert machine.call(new, "box__pid") == stays
    new.close()
    assert not runs(stays)


def test_each_revision_owns_mcp_servers_until_closed(machine: RevisionMachine, tmp_path: Path) -> None:
    def revision(word: str) -> tuple[Revision, int]:
        use = {"ref": "Extension/mcp", "config": {"servers": {"moody": moody(tmp_path / word)}}}
        document.write_text(text.replace("Extension/mirror,", f"{json.dumps(use)},"), encoding="utf-8")
        made = machine.revision(word)
        return made, int((tmp_path / word).read_text(encoding="utf-8"))

    document = machine.bundle / "goondan.yaml"
    text = document.read_text(encoding="utf-8")
    (old, ends), (new, stays) = revision("old"), revision("new")
    assert len(process_board().records()) == 2

    old.close()

    assert not runs(ends)
    assert runs(stays)
    assert len(process_board().records()) == 1
    new.close()
    assert not runs(stays)


def test_files_of_closed_revision_can_be_removed(machine: RevisionMachine) -> None:
    revision = machine.revision("word")
    assert clean_checkouts(machine.checkouts.cache, -1) == []

    revision.close()

    assert len(clean_checkouts(machine.checkouts.cache, -1)) == 1


def test_revision_failing_to_prepare_undoes_its_start(
    machine: RevisionMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.extensions.loader.UNLOAD_SECONDS", 0.5)
    mark, document = tmp_path / "tidied-up", machine.bundle / "goondan.yaml"
    text = document.read_text(encoding="utf-8").replace("/mirror,", "/holds, Extension/fails,")
    document.write_text(text + TWO_MORE, encoding="utf-8")
    (machine.bundle / "holds.py").write_text(HOLDS.format(mark=str(mark)), encoding="utf-8")
    (machine.bundle / "fails.py").write_text(FAILS, encoding="utf-8")

    revision = machine.open(machine.change("broken"))
    with pytest.raises(ExtensionInitError, match="no"):
        revision.prepare([AGENT])

    assert mark.exists()
    assert not revision.extensions.services.events.has(AGENT, "extension.unloading")
    revision.close()
    assert modules_of(machine) == []


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("raise RuntimeError('no\\nskin')\n", "importing the file raises RuntimeError: no"),
        ("import sys\nsys.exit(3)\n", "importing the file raises SystemExit(3)"),
        ("handlers = {}\n", "has no handler"),
        ("def handlers(:\n", "invalid syntax"),
        ("import time\ntime.sleep(60)\n", "importing the file does not end within 0.2 s"),
    ],
)
def test_unloadable_tool_is_reported_before_first_call(
    machine: RevisionMachine, file: str, reason: str
) -> None:
    (machine.bundle / "tools" / "coat.py").write_text(file, encoding="utf-8")
    revision = machine.open(machine.change("odd"))
    revision.prepare([AGENT])
    revision.registry.files.seconds = 0.2 if "sleep" in file else 60

    with pytest.raises((EntryError, ToolNotFoundError), match=re.escape(reason)):
        revision.load_tools([AGENT])
    revision.close()


def test_entry_of_unserved_agent_is_not_imported(machine: RevisionMachine) -> None:
    (machine.bundle / "agents" / "tailor.py").write_text("raise RuntimeError\n", encoding="utf-8")
    revision = machine.open(machine.change("odd"))

    revision.prepare(["nobody"])

    with pytest.raises(EntryError, match=r"tailor.py:1: importing the file raises RuntimeError"):
        revision.prepare([AGENT])
    revision.close()


@pytest.mark.parametrize("file", ["agents/tailor.py", "tools/coat.py"])
def test_edited_file_stays_as_first_loaded(machine: RevisionMachine, file: str) -> None:
    revision = machine.revision("word")
    loaded = [revision.registry.tool(AGENT, "coat__word")]
    (revision.bundle.root / file).write_text("raise RuntimeError('edited')\n", encoding="utf-8")

    loaded += [revision.registry.tool(AGENT, name) for name in ("coat__pid", *EVENT_TOOLS)]

    assert {tool.bound.export.name for tool in loaded} == {"word", "pid", AGENT}
    revision.close()


def test_isolated_tools_file_is_left_unimported(machine: RevisionMachine) -> None:
    document, isolated = machine.bundle / "goondan.yaml", "entry: ./tools/coat.py\n  isolation: process"
    text = document.read_text(encoding="utf-8")
    assert text.count(isolated) == 1
    document.write_text(text.replace(isolated, isolated.replace("coat", "box")), encoding="utf-8")
    (machine.bundle / "tools" / "box.py").write_text("raise RuntimeError\n", encoding="utf-8")
    revision = machine.open(machine.change("odd"))

    revision.load_tools([AGENT, "nobody"])

    revision.close()
