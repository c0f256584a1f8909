"""Run one call in this process, without Redis and Celery: for the unit tests of tools.

::

    from workers.testing import run_tool

    def test_uppercase(tmp_path):
        result = run_tool("my-bundle", "writer", "text__uppercase", {"text": "a"}, state_root=tmp_path)
        assert result.output == {"result": "A"}
"""

import math
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Unpack

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.calls import CallFields, Run, identity_of, new_call
from goondan_tasks.contract.logs import temporary_logging
from goondan_tasks.contract.messages import ToolCallResult, wall_clock
from goondan_tasks.contract.wording import require_keywords
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import EventLoopThread, drive
from workers.concurrency.watchdog import Watchdog
from workers.contexts import RunServices
from workers.javascript.tools import Hosts
from workers.processes.isolation import Children
from workers.progress_reporter import ProgressReporter
from workers.revisions.revision import make_executor, make_extensions, make_registry

#: how long extensions may take to stop what they have started
STOP_SECONDS = 10.0


def run_tool(
    bundle: Bundle | Path | str,
    agent: str,
    tool: str,
    args: Any = None,
    *,
    state_root: Path | None = None,
    **fields: Unpack[CallFields],
) -> ToolCallResult:
    """Run one call exactly as a worker would: guard, middlewares, arguments, handler, outcome.

    The agent's extensions are loaded for it and forgotten afterwards, with their ``api.state``. A tool that
    needs an approval has it. Reports of ``ctx.progress`` are checked and dropped; ``ctx.cancelled`` is false.
    Log lines go to stderr as those of a worker do, unless the program has configured structlog itself.

    The instance's workdir is under ``state_root``, by default a directory that is removed when this returns.

    Raises:
        BundleError: the bundle is not valid.
        ExtensionLoadError, ExtensionInitError: an extension of the agent cannot be used.
        TypeError: calls have no such field.
    """
    require_keywords("run_tool()", fields, CallFields.__annotations__)
    if state_root is None:
        with tempfile.TemporaryDirectory(prefix="goondan-") as folder:
            return run_tool(bundle, agent, tool, args, state_root=Path(folder), **fields)
    loaded = bundle if isinstance(bundle, Bundle) else load_bundle(Path(bundle))
    settings = Settings.load(state_root=state_root)
    call = new_call(agent, tool, args, fields)
    run = Run(identity_of(call), call, "run_tool", 1, wall_clock(), wall_clock, approved_by="run_tool")
    reporter = ProgressReporter(lambda report, answered: None, Watchdog())
    with (
        temporary_logging(settings),
        Children() as children,
        _event_loop() as event_loop,
        ExitStack() as undo,
    ):
        hosts = Hosts()
        undo.callback(lambda: event_loop.submit(hosts.close()).result(STOP_SECONDS))
        registry = make_registry(settings, loaded, children, hosts)
        extensions = make_extensions(loaded, registry, event_loop)
        executor = make_executor(settings, registry, extensions.services, event_loop)
        extensions.load(agent)
        undo.callback(extensions.services.events.stop, STOP_SECONDS)
        coroutine = executor.execute(
            run,
            lambda **_: math.inf,
            watch=lambda *_, **__: lambda: None,
            services=RunServices(Cancellation(), reporter),
        )
        ended = drive(coroutine)
        result = event_loop.submit(coroutine).result() if ended is None else ended[0]
    return ToolCallResult.from_wire(serializer.decode(serializer.encode(result.to_wire())))


@contextmanager
def _event_loop() -> Iterator[EventLoopThread]:
    event_loop = EventLoopThread()
    event_loop.start()
    try:
        yield event_loop
    finally:
        event_loop.stop()
