"""A machine that makes revisions of a bundle, and runs calls with them in this process."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fakeredis

from broker_config.pipelined_writer import PipelinedWriter
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client.client import Client
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.messages import ToolCallResult, wall_clock
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.revisions.checkouts import BundleRef, Checkouts, RevisionSource
from workers.agents.handoffs import Handoffs
from workers.concurrency.event_loop import EventLoopThread
from workers.executor import Executor
from workers.processes.isolation import Children
from workers.revisions.factory import RevisionFactory
from workers.revisions.revision import Revision
from workers.testing import run_here

REVISIONS_BUNDLE = Path(__file__).parents[3] / "bundles" / "revisions"
AGENT = "tailor"
ON_TIME = 30.0


class RevisionMachine:
    """Makes revisions of a copy of ``tests/bundles/revisions``: each has a word of its own."""

    def __init__(self, folder: Path, ledger: Ledger, event_loop: EventLoopThread, children: Children) -> None:
        self.bundle = folder / "bundle"
        shutil.copytree(REVISIONS_BUNDLE, self.bundle)
        settings = ledger.settings
        self.event_loop = event_loop
        self.children = children
        self.checkouts = Checkouts(folder / "cache", RevisionSource(self.bundle.resolve()))
        handoffs = Handoffs(ledger, PipelinedWriter(ledger.redis), Client(settings, load_bundle(self.bundle)))
        instances = Instances(ledger.redis, ledger.keys)
        self._factory = RevisionFactory(settings, ledger, event_loop, children, instances, handoffs)
        self._calls = 0

    def change(self, word: str) -> BundleRef:
        """Change the bundle, and return its ref."""
        for folder in ("tools", "extensions"):
            (self.bundle / folder / "words.py").write_text(f"WORD = {word!r}\n", encoding="utf-8")
        return self.checkouts.source.current()

    def open(self, ref: BundleRef) -> Revision:
        """Put a revision together, not prepared yet; the bundle must be as it says."""
        checkout = self.checkouts.open(ref)
        loaded = load_bundle(checkout.path)
        made: list[Revision] = []
        made.append(
            self._factory.revision(loaded, str(ref), steps_now=lambda: made[0].steps, checkout=checkout)
        )
        return made[0]

    def revision(self, word: str) -> Revision:
        """Change the bundle, and return the new revision, prepared."""
        revision = self.open(self.change(word))
        revision.prepare([AGENT])
        return revision

    def call(self, revision: Revision, tool: str, instance_key: str = "default") -> Any:
        """Run a call with a revision, and return its output."""
        result = self.run(revision, tool, instance_key)
        assert result.status == "ok", result.error
        return result.output

    def run(self, revision: Revision, tool: str, instance_key: str = "default") -> ToolCallResult:
        """Run a call with a revision, as a worker does."""
        self._calls += 1
        fields = {"tool_call_id": f"c-{self._calls}", "instance_key": instance_key}
        call = new_call(AGENT, tool, {}, fields)
        run = Run(identity_of(call), call, "w1", 1, wall_clock(), wall_clock)
        assert isinstance(revision.executor, Executor)
        return run_here(revision.executor, run)


@contextmanager
def revision_machine(folder: Path) -> Iterator[RevisionMachine]:
    """Give a machine whose threads and processes end with the block."""
    settings = Settings.load(state_root=folder / "state")
    event_loop = EventLoopThread()
    with fakeredis.FakeRedis() as redis, Children() as children:
        event_loop.start()
        try:
            yield RevisionMachine(folder, Ledger(redis, settings), event_loop, children)
            event_loop.submit(_others_end()).result(60)
        finally:
            event_loop.stop()


async def _others_end() -> None:
    """Wait for what closed revisions still do on the event loop, such as ending their hosts."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=30)
