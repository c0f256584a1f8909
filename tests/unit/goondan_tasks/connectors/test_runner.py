"""Runs of connectors that behave badly: each is ended, noted and begun again, and its lease is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.connectors.handover import Source
from goondan_tasks.connectors.process import ConnectorProgram
from goondan_tasks.connectors.runner import ConnectionRunner
from goondan_tasks.connectors.store import Lease
from goondan_tasks.fleet.crash_backoff import BackoffRules
from tests.processes import runs
from tests.waiting import wait_until

PATIENCE = 30


class FakeStore:
    """Leases that are always free, and what was noted."""

    def __init__(self, renew: Callable[[], float], lease_seconds: float) -> None:
        self.lease_seconds = lease_seconds
        self._renew = renew
        self._holder = ""
        #: how runs have ended
        self.ended: list[str] = []
        #: what was counted, and how often the agent was looked at, which never has room
        self.counted: list[str] = []
        self.looks = 0

    def key(self, name: str) -> str:
        return name

    def hold(self, lease: Lease) -> float:
        if lease.token == self._holder:
            return self._renew()
        self._holder = lease.token
        return 0

    def let_go(self, lease: Lease, error: str = "") -> None:
        self.ended.append(error[:2_000])

    def count(self, _: Lease, what: str, *__: Any) -> None:
        self.counted.append(what)

    def waiting(self, *_: Any) -> int:
        self.looks += 1
        return 1_000


@contextmanager
def running(
    folder: Path, code: str, *, renew: Callable[[], float] = lambda: 0, lease_seconds: float = 30.0
) -> Iterator[tuple[ConnectionRunner, FakeStore]]:
    """Run a connector with this code."""
    entry = folder / "connector.py"
    entry.write_text(dedent(code))
    store: Any = FakeStore(renew, lease_seconds)
    client: Any = SimpleNamespace()
    runner = ConnectionRunner(
        ConnectorProgram(entry, "notes", "file", {"FOLDER": str(folder)}, {}),
        Source("notes", "file", (), "clerk"),
        client=client, store=store, owner="here:1",
        backoff=BackoffRules(crashes=1, first_ms=10, longest_ms=10),
    )  # fmt: skip
    runner.start()
    yield runner, store
    runner.stop()
    assert runner.join(PATIENCE)


def test_event_waiting_at_programs_end_is_not_refused(tmp_path: Path) -> None:
    code = """
        def connect(ctx):
            ctx.emit({"name": "note", "message": {"type": "text", "text": "hi"}, "instanceKey": "own"})
        """
    with running(tmp_path, code) as (_, store):
        wait_until(lambda: store.looks, PATIENCE)
    assert store.counted == []


def test_connector_ends_although_renewal_of_its_lease_waits(tmp_path: Path) -> None:
    def wait_for_redis() -> float:
        wait_until(lambda: store.ended, PATIENCE)
        return 0

    code = "import asyncio\nasync def connect(ctx):\n    await asyncio.sleep(60)\n"
    with running(tmp_path, code, renew=wait_for_redis, lease_seconds=1.0) as (_, store):
        wait_until(lambda: store.ended, PATIENCE)
    # the connector's process counts the time, too; which of the two ends it first is chance
    assert store.ended[0] in {"Its lease could not be renewed.", "It ended with 75."}


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            """
            import os, time
            async def connect(ctx):
                if os.fork() == 0:
                    time.sleep(60)
                os._exit(7)
            """,
            "It ended with 7.",
        ),
        (
            """
            import os, time
            async def connect(ctx):
                if os.fork() == 0:
                    while True:
                        ctx.logger.info("still here")
                        time.sleep(0.01)
                os._exit(7)
            """,
            "It ended with 7.",
        ),
        (
            """
            import os
            async def connect(ctx):
                ctx.logger.info("odd", _record=1, _from_structlog=2, exc_info=3, level="x", event="y", self=4)
                raise LookupError("after the line")
            """,
            "LookupError: after the line",
        ),
        (
            """
            import os, sys
            async def connect(ctx):
                os.write(int(sys.argv[1]), b'{"type": "ended", "error": 5}\\n')
            """,
            "5",
        ),
        (
            """
            import os, sys
            async def connect(ctx):
                os.write(int(sys.argv[1]), b'[' * 100_000 + b'\\n')
                import asyncio
                await asyncio.sleep(60)
            """,
            "It wrote a message that cannot be read: b'[[[",
        ),
        (
            """
            import functools
            async def run(ctx):
                raise LookupError("inside")
            @functools.wraps(run)
            def connect(ctx):
                return run(ctx)
            """,
            "LookupError: inside",
        ),
        (
            """
            async def run(ctx):
                pass
            connect = lambda ctx: run(ctx)
            """,
            "TypeError: connect returned an awaitable, but is not declared with `async def`",
        ),
        ("async def connect(ctx):\n    raise SystemExit('token is wrong')\n", "SystemExit: token is wrong"),
        ("def connect(ctx):\n    raise SystemExit('token is wrong')\n", "SystemExit: token is wrong"),
        ("async def connect(ctx):\n    raise KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("raise SystemExit('at import')\n", "SystemExit: at import"),
        ("value = 1\n", "does not define 'connect'"),
        ("async def connect(ctx):\n    raise LookupError('odd \\ud800 text')\n", "LookupError: odd "),
    ],
)
def test_failed_run_is_noted_and_begun_again(tmp_path: Path, code: str, reason: str) -> None:
    with running(tmp_path, code) as (_, store):
        wait_until(lambda: len(store.ended) >= 2, PATIENCE, show=lambda: store.ended)
    assert all(reason in error for error in store.ended[:2]), store.ended


def test_connector_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    code = """
        import pathlib, time
        async def connect(ctx):
            pathlib.Path(ctx.config["FOLDER"], "begun").touch()
            while True:
                time.sleep(1)
    """
    with running(tmp_path, code) as (runner, store):
        wait_until((tmp_path / "begun").exists, PATIENCE)
        runner.stop()
        assert runner.join(PATIENCE)
    assert store.ended == ["It did not end when it was asked to."]


def test_processes_started_by_connector_end_with_it(tmp_path: Path) -> None:
    code = """
        import os, subprocess
        from pathlib import Path
        async def connect(ctx):
            child = subprocess.Popen(["sleep", "600"])
            with Path(ctx.config["FOLDER"], "children").open("a") as file:
                print(child.pid, file=file)
            os._exit(7)
    """
    with running(tmp_path, code) as (_, store):
        wait_until(lambda: len(store.ended) > 1, PATIENCE)
        first = int((tmp_path / "children").read_text().split()[0])
    wait_until(lambda: not runs(first), PATIENCE)
