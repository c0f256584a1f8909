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
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.authoring.tool_api import EmitOutput, Logger, ReportProgress
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.calls import CallFields, Run, identity_of, new_call
from goondan_tasks.contract.events import queue_of
from goondan_tasks.contract.logs import temporary_logging
from goondan_tasks.contract.messages import JsonObject, ToolCallResult, wall_clock
from goondan_tasks.contract.output import emit_nowhere, report_of
from goondan_tasks.contract.wording import require_keywords
from goondan_tasks.ledger.record import Claim, Verdict
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import EventLoopThread, beside_loop
from workers.concurrency.slots import KeptSlot, ReleasedSlot, Wait
from workers.concurrency.threads import on_new_thread
from workers.executor import Executor, Mark
from workers.javascript.tools import Hosts
from workers.job import Job
from workers.kept_lines import logger_of
from workers.outcome import awaited_outcome
from workers.plain_context import PlainContext
from workers.processes.isolation import Children
from workers.revisions.factory import make_executor, make_extensions, make_registry

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
    needs an approval has it. What ``ctx.progress`` and ``ctx.emit`` take is checked and dropped;
    ``ctx.cancelled`` is false.
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
        result = run_here(executor, run)
    return ToolCallResult.from_wire(serializer.decode(serializer.encode(result.to_wire())))


class LoneServices:
    """What the contexts of calls need where there is no worker: progress and output are dropped."""

    def logger(self, job: Job) -> Logger:
        """Return the call's logger."""
        return logger_of(job)

    def workdir(self, job: Job) -> Path:
        """Return the call's workdir, made on first use."""
        return job.planned.runner.workdir(job)

    def progress(self, job: Job) -> ReportProgress:
        """Return what checks reports of progress."""
        return _report_nowhere

    def emit(self, job: Job) -> EmitOutput:
        """Return what checks output."""
        return emit_nowhere

    def context(self, job: Job) -> Any:
        """Make the whole context."""
        return job.planned.runner.context(job, self)

    def release_slot(self, job: Job, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release no slot: there is none."""
        return KeptSlot(wait)


def _report_nowhere(done: float, total: float | None = None, message: str | None = None) -> None:
    report_of(done, total, message)


def run_here(
    executor: Executor,
    run: Run,
    *,
    cancellation: Cancellation | None = None,
    mark: Mark = lambda job: None,
) -> ToolCallResult:
    """Run a call in this process as a worker does, without time limits; nothing is stored or counted.

    ``mark`` is called before the first code around the call begins.
    """

    def marked(job: Job) -> None:
        mark(job)
        job.fresh_until = math.inf

    job = Job.of_claim(Claim(run, "", Verdict.RUN, monotonic()), queue_of(run.call))
    job.cancellation = cancellation
    early = executor.prepare(job, lambda *_, **__: lambda: None, marked)
    if early is not None:
        return early
    plan, services = job.planned, LoneServices()
    wire = partial(executor.wire, job, limit_seconds=plan.limit_seconds)
    context = PlainContext(job, services, wire if plan.on_loop else None)
    job.begin(is_wrapped=plan.is_wrapped)
    if not plan.on_loop:
        result = executor.run(job, plan, context, marked)
        return ToolCallResult.from_json(result) if isinstance(result, bytes) else result

    async def handle(arguments: JsonObject) -> Any:
        if plan.is_awaited:
            return await plan.handler(context, arguments)
        return await beside_loop(partial(plan.handler, context, arguments), on_new_thread)

    coroutine = executor.run_on_loop(job, plan, handle, on_new_thread, marked)
    outcome = executor.event_loop.submit(awaited_outcome(coroutine)).result()
    return executor.general_result(job, plan, outcome)


@contextmanager
def _event_loop() -> Iterator[EventLoopThread]:
    event_loop = EventLoopThread()
    event_loop.start()
    try:
        yield event_loop
    finally:
        event_loop.stop()
