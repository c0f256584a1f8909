"""Runs that are to end before their handler or middlewares do."""

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.authoring.extension_api import Middleware, ToolCallContext
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.errors import ToolCancelledError, ToolError
from goondan_tasks.contract.messages import (
    JsonObject,
    ToolCall,
    ToolCallError,
    ToolCallResult,
    assistant_message,
    wall_clock,
)
from goondan_tasks.contract.names import EVENT_TOOL, READ_OUTPUT_TOOL, STEP_TOOL
from goondan_tasks.contract.redaction import KNOWN_SECRETS, KnownSecrets
from goondan_tasks.history import StepRecord
from workers import executor
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import EventLoopThread, is_on_loop
from workers.executor import Mark
from workers.extensions.pipelines import AgentPipelines
from workers.handlers import awaits_next_alone
from workers.javascript.tools import Hosts
from workers.job import Job
from workers.outcome import FunctionOutcome
from workers.plain_context import wire_of
from workers.processes.isolation import Children
from workers.revisions.factory import make_executor, make_extensions, make_registry
from workers.testing import LoneServices, run_here
from workers.tools.dynamic_tools import dynamic_tool
from workers.tools.registry import Registry
from workers.turns.steps import step_tool
from workers.turns.turn_state import OpenedStep

STEPS_BUNDLE = Path(__file__).parents[2] / "bundles" / "steps"

ON_TIME = 10.0
UNUSED: Any = None


class Worker:
    """Runs calls in this process; nobody watches over their limits."""

    def __init__(self, event_loop: EventLoopThread, state_root: Path) -> None:
        settings = Settings.load(state_root=state_root)
        bundle = load_bundle(STEPS_BUNDLE)
        self.registry: Registry = make_registry(settings, bundle, Children(), Hosts())
        services = make_extensions(bundle, self.registry, event_loop).services
        self.pipelines: AgentPipelines = services.pipelines
        self.events = services.events
        self.cancellation = Cancellation()
        self.executor = make_executor(settings, self.registry, services, event_loop)
        self._event_loop = event_loop

    def run(self, call: ToolCall, mark: Mark = lambda job: None) -> ToolCallResult:
        run = Run(identity_of(call), call, "w1", 1, wall_clock(), wall_clock)
        return run_here(self.executor, run, cancellation=self.cancellation, mark=mark)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    event_loop = EventLoopThread()
    event_loop.start()
    yield Worker(event_loop, tmp_path)
    event_loop.stop()


def add_tool(worker: Worker, handler: Callable[[Any, Any], Any]) -> None:
    item = {"name": "late__work", "description": "", "parameters": {"type": "object"}}
    tool = dynamic_tool(item, handler, None, extension="x", entry_path=STEPS_BUNDLE / "x.py")
    worker.registry.dynamic.add("chef", tool)


def late(**fields: Any) -> ToolCall:
    return new_call("chef", "late__work", {}, {"tool_call_id": "c", **fields})


SAID = assistant_message("c", "late__work", {}, "s", "2026-01-01T00:00:00.000Z")


def fails(ctx: Any, input: Any) -> None:
    raise RuntimeError("no")


def event() -> ToolCall:
    args = {"payload": {"id": "e1", "input": "hello"}}
    return new_call("chef", EVENT_TOOL, args, {"tool_call_id": "e1", "timeout_seconds": 4})


async def goes_on(ctx: Any) -> Any:
    return await ctx.next()


@pytest.mark.requirement("result.status")
@pytest.mark.parametrize("status", ["done", "", None, "OK"])
def test_status_that_results_do_not_have_is_refused(worker: Worker, status: Any) -> None:
    async def another(ctx: Any) -> Any:
        return (await ctx.next()).model_copy(update={"status": status})

    add_tool(worker, lambda ctx, input: 1)
    wire = worker.run(late()).to_wire()
    with pytest.raises(ValidationError, match="'ok', 'error' or 'pending'"):
        ToolCallResult.from_wire({**wire, "status": status})
    worker.pipelines.register("chef", "toolCall", another, extension="odd")
    result = worker.run(late())
    assert result.status == "error"
    assert result.error is not None
    assert f"no result has status {status!r}" in result.error.message


@pytest.mark.requirement("result.status")
def test_statuses_of_call_that_works_fails_and_waits(worker: Worker) -> None:
    def ends(ctx: Any, input: Any) -> Any:
        if input["how"] == "fails":
            raise RuntimeError("no")
        return ctx.pending("job-1") if input["how"] == "waits" else 1

    add_tool(worker, ends)
    calls = [late().model_copy(update={"args": {"how": how}}) for how in ("works", "fails", "waits")]
    assert [worker.run(call).status for call in calls] == ["ok", "error", "pending"]


@pytest.mark.requirement("result.output", "json.values")
@pytest.mark.parametrize("value", [None, False, 1.5, "", [], {"a": [None]}])
def test_any_json_from_handler_is_wire_output(worker: Worker, value: Any) -> None:
    add_tool(worker, lambda ctx, input: value)
    wire = worker.run(late()).to_wire()
    assert (wire["status"], wire["output"]) == ("ok", value)


def test_cancel_during_handler_start_beside_loop_counts(worker: Worker) -> None:
    def mark(job: Job) -> None:
        worker.cancellation.set(ToolCancelledError("enough"))

    async def handler(ctx: Any, input: Any) -> None:
        begun.append(1)

    begun: list[int] = []
    item = {"name": "late__work", "description": "", "parameters": {"type": "object"}}
    tool = dynamic_tool(item, handler, None, extension="x", entry_path=STEPS_BUNDLE / "x.py")
    worker.registry.dynamic.add("chef", tool)
    worker.pipelines.register("chef", "toolCall", goes_on, extension="quick")
    result = worker.run(new_call("chef", "late__work", {}, {"tool_call_id": "c"}), mark)
    assert result.error is not None
    assert result.error.code == "E_TOOL_CANCELLED"
    assert begun == []


def test_cancelled_call_has_no_post_whatever_handler_raises(worker: Worker) -> None:
    def handler(ctx: Any, input: Any) -> None:
        worker.cancellation.set(ToolCancelledError("enough"))
        raise RuntimeError("in the midst of it")

    posts: list[Any] = []
    item = {"name": "late__work", "description": "", "parameters": {"type": "object"}}
    tool = dynamic_tool(item, handler, None, extension="x", entry_path=STEPS_BUNDLE / "x.py")
    worker.registry.dynamic.add("chef", tool)
    worker.pipelines.v1.mutate("chef", "toolCall.post", posts.append, extension="older")
    result = worker.run(new_call("chef", "late__work", {}, {"tool_call_id": "c"}))
    assert result.error is not None
    assert (result.error.code, posts) == ("E_TOOL_CANCELLED", [])


def test_non_json_error_output_still_gives_result(worker: Worker) -> None:
    def spoil(ctx: Any) -> None:
        ctx.tool_result.output = {1, 2}

    add_tool(worker, fails)
    worker.pipelines.v1.mutate("chef", "toolCall.post", spoil, extension="older")
    result = worker.run(late())
    assert result.error is not None
    assert (result.error.code, result.output) == ("E_TOOL_BAD_OUTPUT", None)
    serializer.encode(result.to_wire())


def test_large_error_output_goes_to_file_too(worker: Worker) -> None:
    def tell(ctx: Any) -> None:
        ctx.tool_result.output = "x" * 300_000

    add_tool(worker, fails)
    worker.pipelines.v1.mutate("chef", "toolCall.post", tell, extension="older")
    result = worker.run(late())
    assert (result.status, result.output["size"]) == ("error", 300_002)
    assert result.meta.output_file == result.output["path"]


@pytest.mark.requirement("error.message-limit", "error.truncation")
def test_error_that_middleware_makes_longer_is_cut_too(worker: Worker) -> None:
    def reword(ctx: Any) -> None:
        ctx.tool_result.error.message = "x" * 3_000

    def made(ctx: Any) -> Any:
        error = ToolCallError(code="E_OWN", name="Own", message="y" * 3_000)
        return seen[0].model_copy(update={"status": "error", "error": error})

    add_tool(worker, fails)
    worker.pipelines.v1.mutate("chef", "toolCall.post", reword, extension="older")
    reworded = worker.run(late())
    worker.pipelines.v1.clear("chef")
    seen = [reworded]
    worker.pipelines.register("chef", "toolCall", made, extension="today")
    for result, letter in ((reworded, "x"), (worker.run(late()), "y")):
        assert result.error is not None
        assert result.error.message == letter * 985 + "... (truncated)"


async def passes(ctx: Any, next: Any) -> Any:
    return await next(ctx)


@pytest.mark.parametrize(("version", "is_on_loop"), [("older", False), ("older", True), ("today", False)])
def test_handler_never_begins_after_middleware_outlasts_call(
    worker: Worker, version: str, is_on_loop: bool
) -> None:
    def slow(ctx: Any) -> Any:
        worker.cancellation.set(ToolCancelledError("enough"))
        return ctx.next() if version == "today" else ctx

    ran: list[Any] = []
    add_tool(worker, lambda ctx, input: ran.append(input))
    if is_on_loop:
        worker.pipelines.v1.wrap("chef", "toolCall.exec", passes, extension="around", priority=-1)
    if version == "today":
        worker.pipelines.register("chef", "toolCall", slow, extension="slow")
    else:
        worker.pipelines.v1.mutate("chef", "toolCall.pre", slow, extension="slow")
    error = worker.run(late()).error
    assert error is not None
    assert (error.code, ran) == ("E_TOOL_CANCELLED", [])


def claimed(call: ToolCall, approved_by: bytes | None = None) -> Job:
    answer = (b"run", 1, 0, 0, None, approved_by, serializer.encode(call.to_wire()), b"", b"id-1")
    job = Job("agent.chef", "token-1", answer, asked_at=0.0, clock=wall_clock, worker="w1")
    assert job.classify()
    return job


def add_older_function(worker: Worker) -> None:
    worker.pipelines.v1.mutate("chef", "toolCall.pre", lambda context: context, extension="x")


def add_listener(worker: Worker) -> None:
    worker.events.on("chef", "tool.completed", print, extension="x")


def add_tool_of_turn(worker: Worker) -> None:
    item = {"name": "other__work", "description": "", "parameters": {"type": "object"}}
    tool = dynamic_tool(item, fails, None, extension="x", entry_path=STEPS_BUNDLE / "x.py", turn=("i", "t"))
    worker.registry.dynamic.add("chef", tool)


def test_older_extension_around_calls_makes_new_plan(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, lambda ctx, input: 1)
    plan = worker.executor.plans.of(claimed(late()))
    assert plan is not None
    assert worker.executor.plans.of(claimed(late())) is plan

    add_older_function(worker)

    changed = worker.executor.plans.of(claimed(late()))
    assert changed is not None
    assert (plan.is_wrapped, changed.is_wrapped) == (False, True)


@pytest.mark.parametrize("is_async", [False, True])
def test_both_versions_share_plain_calls_onion(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    def first(context: Any) -> None:
        context.tool_call.arguments = {**context.tool_call.arguments, "first": 1}

    async def first_async(context: Any) -> None:
        await asyncio.sleep(0)
        first(context)

    def last(context: Any) -> None:
        context.tool_result = replace(context.tool_result, output={"of": context.tool_result.output})

    chains = worker.pipelines.v1
    chains.mutate("chef", "toolCall.pre", first_async if is_async else first, extension="x")
    chains.wrap("chef", "toolCall.exec", lambda context, proceed: proceed(context), extension="x")
    chains.mutate("chef", "toolCall.post", last, extension="x")
    result = run_within(worker, monkeypatch, lambda ctx: ctx.next())
    assert isinstance(result, ToolCallResult)
    assert (result.status, result.output) == ("ok", {"of": {"got": {"first": 1}}})


def test_open_policy_keeps_agents_own_tool_plans(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    worker.registry.is_open = True
    add_tool(worker, lambda ctx, input: 1)
    assert worker.executor.plans.of(claimed(late())) is not None
    undeclared = next(
        name
        for name in worker.registry.bundle.all_tools()
        if name not in (worker.registry.catalog("chef") or {})
    )
    worker.registry.tool("chef", undeclared)
    assert worker.executor.plans.of(claimed(late().model_copy(update={"tool_name": undeclared}))) is None


def test_extensions_have_nothing_around_systems_own_tools(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    worker.pipelines.register("chef", "toolCall", goes_on, extension="x")
    add_older_function(worker)
    add_listener(worker)
    plan = worker.executor.plans.of(claimed(late().model_copy(update={"tool_name": READ_OUTPUT_TOOL})))
    assert plan is not None
    assert not plan.is_wrapped


def test_turn_tool_leaves_other_calls_plans_unchanged(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, lambda ctx, input: 1)
    plan = worker.executor.plans.of(claimed(late()))
    assert plan is not None

    item = {"name": "late__work", "description": "", "parameters": {"type": "object"}}
    own = dynamic_tool(item, fails, None, extension="x", entry_path=STEPS_BUNDLE / "x.py", turn=("i", "t"))
    worker.registry.dynamic.add("chef", own)

    assert worker.executor.plans.of(claimed(late(instance_key="i", turn_id="t"))) is None
    assert worker.executor.plans.of(claimed(late(instance_key="i", turn_id="other"))) is plan


def test_plain_call_removing_turn_tool_informs_workers(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def note(call: ToolCall, names: Any) -> None:
        told.append((call.turn_id, *names))

    monkeypatch.setattr(worker.executor.endings.guard, "note_unregistered", note)
    turn = ("default", late().turn_id)
    result = run_plain(
        worker, monkeypatch, lambda *_: worker.registry.dynamic.remove("chef", "late__work", turn)
    )
    assert isinstance(result, ToolCallResult)
    assert told == [(turn[1], "late__work")]


@pytest.mark.parametrize(
    ("handler", "ended"),
    [(lambda ctx, input: 1, ("ok", None)), (fails, ("error", "E_TOOL"))],
)
def test_listeners_hear_plain_call_around_its_handler(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    handler: Callable[[Any, Any], Any],
    ended: tuple[str, str | None],
) -> None:
    heard: list[Any] = []

    def called(event: JsonObject) -> None:
        heard.append(("called", event["toolCallId"]))

    def completed(event: JsonObject) -> None:
        heard.append((event["status"], event["code"]))

    def noted(ctx: Any, input: Any) -> Any:
        heard.append("handler")
        return handler(ctx, input)

    worker.events.on("chef", "tool.called", called, extension="x")
    worker.events.on("chef", "tool.completed", completed, extension="x")
    run_plain(worker, monkeypatch, noted)
    assert heard == [("called", "c"), "handler", ended]


@pytest.mark.requirement("result.pending-handle")
@pytest.mark.parametrize("approved_by", [None, b"ann"])
@pytest.mark.parametrize("middlewares", [(), (lambda ctx: ctx.next(),), (goes_on,)])
def test_plain_call_awaits_approval_before_handler_begins(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    approved_by: bytes | None,
    middlewares: tuple[Middleware, ...],
) -> None:
    begun: list[Any] = []
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    monkeypatch.setattr(type(worker.executor.endings.suspension), "asks", lambda self, bound: True)
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")
    add_tool(worker, lambda ctx, input: begun.append(input))
    job = claimed(late(), approved_by)
    plan = worker.executor.plans.of(job)
    assert plan is not None
    job.fresh_until, job.started_at = math.inf, wall_clock()
    early = worker.executor.early_result(job, plan)
    result = early or worker.executor.run(job, plan, UNUSED, not_asked)
    shown = ToolCallResult.from_json(result) if isinstance(result, bytes) else result
    assert (early is not None) is (approved_by is None and not middlewares)
    assert shown.status == ("pending" if approved_by is None else "ok")
    assert begun == ([] if approved_by is None else [{}])


def test_listener_hears_of_plain_call_with_wrong_arguments(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    worker.events.on("chef", "tool.completed", lambda event: heard.append(event["code"]), extension="x")
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, fails)
    job = claimed(late().model_copy(update={"args": []}))
    plan = worker.executor.plans.of(job)
    assert plan is not None
    assert worker.executor.early_result(job, plan) is None
    job.fresh_until = math.inf
    result = worker.executor.run(job, plan, UNUSED, not_asked)
    assert isinstance(result, ToolCallResult)
    assert heard == ["E_TOOL_INVALID_ARGS"]


def test_plan_has_calls_own_time_limit(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, lambda ctx, input: 1)
    plan, limited = (worker.executor.plans.of(claimed(late(timeout_seconds=each))) for each in (None, 7))
    assert plan is not None
    assert limited is not None
    assert (plan.limit_seconds, limited.limit_seconds) == (300, 7)


def not_asked(job: Job) -> None:
    raise AssertionError("its mark is fresh")


def run_plain(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, handler: Callable[[Any, Any], Any]
) -> bytes | ToolCallResult:
    """Run a call of a plain tool on its short road."""
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, handler)
    job = claimed(late())
    plan = worker.executor.plans.of(job)
    assert plan is not None
    job.started_at, job.fresh_until = wall_clock(), math.inf
    return worker.executor.run(job, plan, UNUSED, not_asked)


def test_failing_async_handler_gets_plain_result(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    add_tool(worker, lambda ctx, input: None)
    job = claimed(late())
    plan = worker.executor.plans.of(job)
    assert plan is not None
    job.started_at = wall_clock()

    wire = worker.executor.plain_result(job, plan, FunctionOutcome(error=ValueError("no pans")))

    assert wire is not None
    error = error_of(wire)
    assert (error.code, error.message) == ("E_TOOL", "no pans")
    assert job.error is not None


def opening(agent: str = "chef") -> ToolCall:
    return new_call(agent, STEP_TOOL, {"index": 0}, {"tool_call_id": "o", "turn_id": "t"})


@pytest.mark.parametrize("change", [add_older_function, add_listener, add_tool_of_turn])
def test_plan_opens_step_whatever_surrounds_tool_calls(
    worker: Worker, change: Callable[[Worker], None]
) -> None:
    def opens(job: Any) -> OpenedStep:
        names = {"agent_name": job.agent, "instance_key": "k", "turn_id": job.original.turn_id}
        record = StepRecord(id="s-1", trace_id="0" * 32, index=0, catalog="digest", **names)
        return OpenedStep(record, UNUSED, UNUSED)

    worker.registry.add_system_tool(step_tool(opens))
    change(worker)
    job = claimed(opening())
    plan = worker.executor.plans.of(job)
    assert plan is not None
    assert worker.executor.early_result(job, plan) is None
    job.started_at = wall_clock()
    result = worker.executor.run(job, plan, UNUSED, not_asked)
    assert isinstance(result, bytes)
    assert ToolCallResult.from_json(result).output["step"]["turnId"] == "t"


def test_step_of_unknown_agent_has_no_plan(worker: Worker) -> None:
    worker.registry.add_system_tool(step_tool(UNUSED))
    job = claimed(opening())
    job.agent = "nobody"
    assert worker.executor.plans.of(job) is None


def swaps_arguments(ctx: ToolCallContext) -> Any:
    ctx.args = {"n": 5}
    return ctx.next()


def asks_loop(ctx: ToolCallContext) -> Any:
    async def answer() -> Any:
        await asyncio.sleep(0)
        result = await ctx.next()
        return {"seen": result.output, "by": ctx.message.to_wire()["data"]["role"] if ctx.message else None}

    return answer()


def run_within(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, *middlewares: Middleware
) -> bytes | ToolCallResult:
    """Run a call of a plain tool within middlewares; the tool returns its arguments."""
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")
    return run_plain(worker, monkeypatch, lambda ctx, input: {"got": input})


def error_of(result: bytes | ToolCallResult) -> ToolCallError:
    """Return the error of a call that nothing follows from: its result is JSON."""
    assert isinstance(result, bytes)
    error = ToolCallResult.from_json(result).error
    assert error is not None
    return error


def test_plain_middleware_changes_arguments_without_result_object(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_within(worker, monkeypatch, lambda ctx: ctx.next(), swaps_arguments)
    assert isinstance(result, bytes)
    assert json.loads(result)["output"] == {"got": {"n": 5}}


def test_middleware_awaiting_only_next_sees_status_on_handler_thread(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    @awaits_next_alone
    async def looks(ctx: ToolCallContext) -> Any:
        result = await ctx.next()
        seen.append((result.status, is_on_loop()))
        return result

    result = run_within(worker, monkeypatch, looks, lambda ctx: ctx.next())
    assert isinstance(result, bytes)
    assert seen == [("ok", False)]


@pytest.mark.parametrize(
    ("middleware", "output"),
    [(lambda ctx: {"mine": 1}, {"mine": 1}), (lambda ctx: ctx.tool_name, "late__work")],
)
def test_plain_middleware_answers_with_json_of_its_own(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, middleware: Middleware, output: Any
) -> None:
    result = run_within(worker, monkeypatch, middleware)
    assert isinstance(result, ToolCallResult)
    assert (result.status, result.output) == ("ok", output)


def refuses(ctx: ToolCallContext) -> Any:
    raise ToolError("closed", code="E_CLOSED")


def breaks(ctx: ToolCallContext) -> Any:
    raise ZeroDivisionError("by nothing")


def clears_arguments(ctx: ToolCallContext) -> Any:
    ctx.args = "none"  # type: ignore[assignment]
    return ctx.next()


@pytest.mark.parametrize(
    ("middleware", "code", "word"),
    [
        (refuses, "E_CLOSED", "closed"),
        (breaks, "E_MIDDLEWARE", "x.breaks raised ZeroDivisionError"),
        (lambda ctx: None, "E_MIDDLEWARE", "returned nothing"),
        (lambda ctx: {1, 2}, "E_MIDDLEWARE", "is not JSON"),
        (clears_arguments, "E_TOOL_INVALID_ARGS", "object"),
    ],
)
def test_fault_of_plain_middleware_ends_its_call(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, middleware: Middleware, code: str, word: str
) -> None:
    error = error_of(run_within(worker, monkeypatch, middleware))
    assert error.code == code
    assert word in error.message


def test_calls_begin_on_loop_once_plain_middleware_awaits(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run_within(worker, monkeypatch, asks_loop)
    assert isinstance(result, ToolCallResult)
    assert result.output == {"seen": {"got": {}}, "by": "assistant"}
    plan = worker.executor.plans.of(claimed(late()))
    assert plan is not None
    assert plan.on_loop


@pytest.mark.parametrize("fields", [{}, {"step_id": "s"}, {"step_id": "s", "message": SAID}])
def test_process_beside_worker_gets_plain_calls_whole_context(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    monkeypatch.setattr(worker.executor.endings.guard, "admits", lambda *_: True)
    add_tool(worker, lambda ctx, input: 1)
    job = claimed(late(**fields))
    plan = worker.executor.plans.of(job)
    assert plan is not None
    job.plan = plan
    job.begin(is_wrapped=False)

    async def on_loop() -> JsonObject:
        return worker.executor.wire(job, limit_seconds=plan.limit_seconds)

    told = asyncio.run(on_loop())
    whole = wire_of(worker.executor.contexts.make(job, LoneServices()))

    assert abs(told.pop("deadline") - whole.pop("deadline")) < 1_000
    assert told == whole


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_token_plain_tool_requests_and_returns_is_hidden(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def posts(ctx: Any, input: Any) -> Any:
        KNOWN_SECRETS.add("xoxb-token-of-a-plain-call")
        return {"header": "Bearer xoxb-token-of-a-plain-call"}

    result = run_plain(worker, monkeypatch, posts)

    assert isinstance(result, ToolCallResult)
    assert result.output == {"header": "Bearer ***"}


@pytest.mark.requirement("result.async-form")
def test_plain_tool_may_return_documented_pending_form(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "KNOWN_SECRETS", KnownSecrets())  # other tests have secrets
    said = {"__async": True, "handle": "build-1", "message": "begun"}

    result = run_plain(worker, monkeypatch, lambda ctx, input: said)

    assert isinstance(result, ToolCallResult)
    assert (result.status, result.handle, result.output) == ("pending", "build-1", {"message": "begun"})


@pytest.mark.parametrize("middlewares", [(), (lambda ctx: ctx.next(),), (goes_on,)])
def test_awaitable_from_plain_function_is_awaited_each_time(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, middlewares: tuple[Middleware, ...]
) -> None:
    async def later() -> Any:
        await asyncio.sleep(0)
        return {"late": True}

    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")
    result = run_plain(worker, monkeypatch, lambda ctx, input: later())
    shown = ToolCallResult.from_json(result) if isinstance(result, bytes) else result
    assert (shown.status, shown.output) == ("ok", {"late": True})
    plan = worker.executor.plans.of(claimed(late()))
    assert plan is not None
    assert plan.on_loop
    assert worker.run(late()).output == {"late": True}


AROUND = pytest.mark.parametrize("middlewares", [(), (lambda ctx: ctx.next(),), (goes_on,)])


@AROUND
def test_plain_function_may_return_value_after_awaitable(
    worker: Worker, middlewares: tuple[Middleware, ...]
) -> None:
    async def later() -> Any:
        return "later"

    given: list[Any] = ["now", later(), "now"]
    add_tool(worker, lambda ctx, input: given.pop(0))
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")

    outputs = [worker.run(late()).output for _ in range(3)]

    assert outputs == ["now", "later", "now"]


@AROUND
def test_awaitables_from_simultaneous_plain_calls_are_awaited(
    worker: Worker, middlewares: tuple[Middleware, ...]
) -> None:
    is_awaited, both = threading.Event(), threading.Barrier(2)

    async def first() -> Any:
        is_awaited.set()
        return "first"

    async def second() -> Any:
        return "second"

    def handler(ctx: Any, input: Any) -> Any:
        if both.wait(ON_TIME) == 0:
            return first()
        assert is_awaited.wait(ON_TIME)
        return second()

    add_tool(worker, handler)
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")
    worker.executor.plans.prepared(claimed(late()), UNUSED)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(worker.run, [late(), late()]))

    assert {result.output for result in results} == {"first", "second"}


@AROUND
@pytest.mark.parametrize("fields", [{}, {"timeout_seconds": 60}])
def test_plain_functions_awaitable_is_cancelled_with_call(
    worker: Worker, middlewares: tuple[Middleware, ...], fields: dict[str, Any]
) -> None:
    ends: list[str] = []

    async def hangs() -> None:
        worker.cancellation.set(ToolCancelledError("enough"))
        try:
            async with asyncio.timeout(ON_TIME):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        except TimeoutError:
            ends.append("went on")

    add_tool(worker, lambda ctx, input: hangs())
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")

    for _ in range(2):  # the second one begins on the event loop
        worker.cancellation = Cancellation()
        assert worker.run(late(**fields)).status == "error"

    assert ends == ["cancelled", "cancelled"]


def test_plain_functions_awaitable_never_begins_after_cancel(worker: Worker) -> None:
    begun: list[int] = []

    async def later() -> None:
        begun.append(1)

    def handler(ctx: Any, input: Any) -> Any:
        worker.cancellation.set(ToolCancelledError("enough"))
        return later()

    add_tool(worker, handler)

    assert worker.run(late()).status == "error"
    assert begun == []


def test_limited_call_begins_on_loop_after_awaiting_calls(
    worker: Worker,
) -> None:
    async def later() -> None: ...

    add_tool(worker, lambda ctx, input: later())
    assert worker.run(late(timeout_seconds=60)).status == "ok"

    plan = worker.executor.plans.prepared(claimed(late(timeout_seconds=50)), UNUSED)

    assert plan.on_loop
    assert not plan.is_awaited  # the function itself may block


class Closed(dict[str, Any]):
    """A row whose fields are read when they are asked for, which is too late."""

    def __contains__(self, name: object) -> bool:
        raise RuntimeError("the connection is closed")

    def items(self) -> Any:
        raise RuntimeError("the connection is closed")


@AROUND
@pytest.mark.parametrize("gives", [lambda: Closed(row=1), lambda: [Closed(row=1)]])
def test_unreadable_value_ends_only_its_call(
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    middlewares: tuple[Middleware, ...],
    gives: Callable[[], Any],
) -> None:
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")

    error = error_of(run_plain(worker, monkeypatch, lambda ctx, input: gives()))

    assert "the connection is closed" in error.message


class UnreadableError(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@AROUND
def test_unreadable_error_ends_only_its_call(worker: Worker, middlewares: tuple[Middleware, ...]) -> None:
    def handler(ctx: Any, input: Any) -> Any:
        raise UnreadableError

    add_tool(worker, handler)
    for middleware in middlewares:
        worker.pipelines.register("chef", "toolCall", middleware, extension="x")

    error = worker.run(late()).error

    assert error is not None
    assert error.message == "UnreadableError, which cannot be shown"


def test_nothing_is_kept_of_nonexistent_tools(worker: Worker) -> None:
    for number in range(3):
        made_up = late().model_copy(update={"tool_name": f"made__up{number}"})
        assert worker.executor.plans.of(claimed(made_up)) is None
    assert worker.executor.plans._plans == {}


def test_slow_middlewares_renew_mark_before_handler(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.executor.contexts, "knows", lambda *_: True)
    told: list[str] = []
    add_tool(worker, lambda ctx, input: told.append("handler"))
    worker.pipelines.register("chef", "toolCall", goes_on, extension="x")
    job = claimed(late())
    plan = worker.executor.plans.of(job)
    assert plan is not None
    context: Any = UNUSED

    async def handle(arguments: Any) -> Any:
        return plan.handler(context, arguments)

    def beside(work: Callable[[], object], then: Callable[[], object]) -> None:
        work()
        asyncio.get_running_loop().call_soon(then)

    def mark_again(job: Job) -> None:
        told.append("mark")

    def refuses(job: Job) -> None:
        raise ToolCancelledError("The claim was lost.")

    asyncio.run(worker.executor.run_on_loop(job, plan, handle, beside, mark_again))
    assert told == ["mark", "handler"]
    with pytest.raises(ToolCancelledError):
        asyncio.run(worker.executor.run_on_loop(claimed(late()), plan, handle, beside, refuses))
    assert told == ["mark", "handler"]
