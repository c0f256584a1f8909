"""The way of one tool call through the functions of the older version's extensions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from goondan_tasks.authoring.extension_api import ToolCallContext
from goondan_tasks.authoring.v1_api import EffectiveConfig, Step, ToolCallExecContext, ToolResult, Turn
from goondan_tasks.authoring.v1_api import ToolCall as V1Call
from goondan_tasks.authoring.v1_api import ToolError as V1Error
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.errors import MiddlewareError, ToolCancelledError, ToolError
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, wall_clock
from workers.cancellation import Cancellation
from workers.concurrency.threads import on_new_thread
from workers.extensions.pipelines import AgentPipelines
from workers.turns.pipeline import MiddlewareServices
from workers.v1.conversions import Shown, v1_call

CALL = new_call("coder", "slack.postMessage", {"text": "hi"}, {"tool_call_id": "call_1", "turn_id": "t"})
RUN = Run(identity_of(CALL), CALL, "w1", 1, wall_clock(), wall_clock)

Handler = Callable[[Any], Any]


class Contexts:
    """Makes contexts of a bundle without resources."""

    def shown(self, call: ToolCall) -> Shown:
        """See :class:`workers.v1.views.Views`."""
        turn = Turn(call.turn_id, "swarm-default", call.agent_name)
        return Shown(turn, Step("s", 0, call.turn_id), ())

    def of_call(self, call: ToolCall, shown: Shown) -> ToolCallExecContext:
        """See :class:`workers.v1.views.Views`."""
        return ToolCallExecContext(
            tool_call=v1_call(call),
            turn=shown.turn,
            step=shown.step,
            effective_config=EffectiveConfig(None, None),  # type: ignore[arg-type]  # nobody looks
            tool_catalog=shown.tool_catalog,
        )


@dataclass
class Call:
    """A call of one tool, with what stands in its way."""

    pipelines: AgentPipelines = field(default_factory=AgentPipelines)
    cancellation: Cancellation = field(default_factory=Cancellation)

    def __post_init__(self) -> None:
        self.pipelines.v1.made_by = Contexts()  # type: ignore[assignment]  # calls need no more

    def mutate(self, point: str, function: Any, priority: int = 0, name: str | None = None) -> None:
        self.pipelines.v1.mutate("coder", point, function, extension="ext", priority=priority, name=name)

    def wrap(self, function: Any, priority: int = 0) -> None:
        self.pipelines.v1.wrap("coder", "toolCall.exec", function, extension="ext", priority=priority)

    def result(self, handler: Handler) -> ToolCallResult:
        """Return what comes of the call; the handler is given the arguments."""

        async def core(context: ToolCallContext) -> ToolCallResult:
            return RUN.ok(handler(context.args), None)

        def shape(answer: Any) -> ToolCallResult:
            return RUN.adopted(answer, None) if isinstance(answer, ToolCallResult) else RUN.ok(answer, None)

        def failed(error: BaseException) -> ToolCallResult:
            return RUN.failed(describe(error, help_url="https://help/"), None)

        services = MiddlewareServices(self.cancellation, on_new_thread, shape, failed)
        go = self.pipelines.around_call(RUN, services, core)
        assert go is not None
        return asyncio.run(go(ToolCallContext(CALL.tool_name, CALL.tool_call_id, CALL.args)))  # type: ignore[arg-type]


@pytest.fixture
def call() -> Call:
    return Call()


def echo(args: Any) -> Any:
    return {"got": args}


@pytest.mark.requirement("v1.pipeline-points")
def test_call_passes_pre_both_versions_onion_and_post(call: Call) -> None:
    steps: list[str] = []

    async def outer(ctx: ToolCallExecContext, next: Any) -> Any:
        steps.append("outer in")
        result = await next(ctx)
        steps.append(f"outer out {result.status}")
        return result

    async def todays(ctx: ToolCallContext) -> Any:
        steps.append("todays in")
        result = await ctx.next()
        steps.append("todays out")
        return result

    def inner(ctx: ToolCallExecContext, next: Any) -> Any:
        steps.append("inner in")
        return next(ctx)

    call.mutate("toolCall.post", lambda ctx: steps.append("post"))
    call.wrap(inner, priority=10)
    call.pipelines.register("coder", "toolCall", todays, extension="new", priority=5)
    call.wrap(outer, priority=-1)
    call.mutate("toolCall.pre", lambda ctx: steps.append("second pre"), priority=2)
    call.mutate("toolCall.pre", lambda ctx: steps.append("first pre"), priority=1)

    call.result(lambda args: steps.append("handler"))

    before = ["first pre", "second pre", "outer in", "todays in", "inner in"]
    assert steps == [*before, "handler", "todays out", "outer out ok", "post"]


def test_exec_sees_call_and_then_its_result(call: Call) -> None:
    seen: list[Any] = []

    async def look(ctx: ToolCallExecContext, next: Any) -> Any:
        seen.append((ctx.tool_call, ctx.tool_result, ctx.turn.id, ctx.step.index))
        result = await next(ctx)
        seen.append((result, ctx.tool_result))
        return result

    call.wrap(look)
    call.result(echo)

    result = ToolResult("ok", {"got": {"text": "hi"}})
    assert seen == [
        (V1Call("call_1", "slack.postMessage", {"text": "hi"}), None, "t", 0),
        (result, result),
    ]


def test_arguments_that_any_of_them_changes_reach_handler(call: Call) -> None:
    def pre(ctx: ToolCallExecContext) -> ToolCallExecContext:
        return replace(ctx, tool_call=replace(ctx.tool_call, arguments={"text": "pre"}))

    async def execute(ctx: ToolCallExecContext, next: Any) -> Any:
        ctx.tool_call.arguments = {"text": ctx.tool_call.arguments["text"] + ", exec"}
        result = await next(ctx)
        seen.append(ctx.tool_call.arguments)
        return result

    async def todays(ctx: ToolCallContext) -> Any:
        ctx.args = {"text": ctx.args["text"] + ", today"}
        return await ctx.next()

    seen: list[Any] = []
    call.mutate("toolCall.pre", pre)
    call.wrap(execute, priority=1)
    call.pipelines.register("coder", "toolCall", todays, extension="new", priority=2)
    call.wrap(lambda ctx, next: next(ctx), priority=3)

    assert call.result(echo).output == {"got": {"text": "pre, exec, today"}}
    assert seen == [{"text": "pre, exec, today"}]


def test_exec_may_go_on_with_another_context(call: Call) -> None:
    async def execute(ctx: ToolCallExecContext, next: Any) -> Any:
        other = replace(ctx, tool_call=replace(ctx.tool_call, arguments={}), metadata={"by": "exec"})
        await next(other)
        seen.append(ctx.tool_result)

    async def inner(ctx: ToolCallExecContext, next: Any) -> Any:
        seen.append(ctx.metadata)
        return await next(ctx)

    seen: list[Any] = []
    call.wrap(execute)
    call.wrap(inner)

    assert call.result(echo).output == {"got": {}}
    assert seen == [{"by": "exec"}, ToolResult("ok", {"got": {}})]


@pytest.mark.parametrize("change", [{"name": "slack.delete"}, {"id": "call_2"}])
def test_call_keeps_name_and_id_of_admission(call: Call, change: Any) -> None:
    def pre(ctx: ToolCallExecContext) -> ToolCallExecContext:
        return replace(ctx, tool_call=replace(ctx.tool_call, **change))

    call.mutate("toolCall.pre", pre)
    with pytest.raises(MiddlewareError, match=r"ext\.pre raised ValueError: a call keeps its id and name"):
        call.result(echo)


def test_pre_that_fails_keeps_handler_from_running(call: Call) -> None:
    ran: list[Any] = []

    def check(ctx: ToolCallExecContext) -> None:
        raise RuntimeError("no text")

    call.mutate("toolCall.pre", check, name="input-check")
    call.mutate("toolCall.post", ran.append)
    with pytest.raises(MiddlewareError, match=r"ext\.input-check raised RuntimeError: no text"):
        call.result(ran.append)
    assert ran == []


def test_post_makes_result(call: Call) -> None:
    def hide(ctx: ToolCallExecContext) -> ToolCallExecContext:
        assert ctx.tool_result is not None
        ctx.tool_result.output = "hidden"
        return ctx

    def count(ctx: ToolCallExecContext) -> ToolCallExecContext:
        assert ctx.tool_result is not None
        return replace(ctx, tool_result=ToolResult("ok", [ctx.tool_result.output, "counted"]))

    call.mutate("toolCall.post", hide)
    call.mutate("toolCall.post", count)

    result = call.result(echo)
    assert (result.output, result.meta.id) == (["hidden", "counted"], RUN.id)


def test_post_sees_failure_result_unlike_exec(call: Call) -> None:
    seen: list[Any] = []

    async def execute(ctx: ToolCallExecContext, next: Any) -> Any:
        try:
            return await next(ctx)
        except KeyError as error:
            seen.append((repr(error), ctx.tool_result))
            raise

    def post(ctx: ToolCallExecContext) -> None:
        seen.append(ctx.tool_result)

    def handler(args: Any) -> Any:
        raise KeyError("channel")

    call.wrap(execute)
    call.mutate("toolCall.post", post)

    result = call.result(handler)
    assert result.error is not None
    assert (result.status, result.error.code, result.error.name) == ("error", "E_TOOL", "KeyError")
    failure = ToolResult("error", error=V1Error("'channel'", "KeyError", "E_TOOL"))
    assert seen == [("KeyError('channel')", None), failure]


def test_post_rewording_error_keeps_its_suggestion(call: Call) -> None:
    def reword(ctx: ToolCallExecContext) -> None:
        assert ctx.tool_result is not None
        assert ctx.tool_result.error is not None
        ctx.tool_result.error.message = "not now"

    def handler(args: Any) -> Any:
        raise ToolError("closed", code="E_CLOSED", suggestion="Come back at nine.")

    call.mutate("toolCall.post", reword)

    error = call.result(handler).error
    assert error is not None
    assert (error.code, error.message, error.suggestion) == ("E_CLOSED", "not now", "Come back at nine.")


def test_post_may_make_success_of_failure_and_reverse(call: Call) -> None:
    def mend(ctx: ToolCallExecContext) -> None:
        ctx.tool_result = ToolResult("ok", "mended")

    def spoil(ctx: ToolCallExecContext) -> None:
        ctx.tool_result = ToolResult("error", error=V1Error("spoilt"))

    def handler(args: Any) -> Any:
        raise KeyError("channel")

    call.mutate("toolCall.post", mend)
    assert call.result(handler).output == "mended"
    call.mutate("toolCall.post", spoil)
    error = call.result(handler).error
    assert error is not None
    assert (error.code, error.name, error.message) == ("E_TOOL", "ToolError", "spoilt")


@pytest.mark.parametrize(
    "left",
    [
        None,
        {"status": "ok"},
        ToolResult("done"),  # type: ignore[arg-type]
        ToolResult("error"),
        ToolResult("ok", error=V1Error("x")),
        ToolResult("error", error=V1Error(5)),  # type: ignore[arg-type]
    ],
)
def test_non_result_is_refused_naming_its_function(call: Call, left: Any) -> None:
    def post(ctx: ToolCallExecContext) -> None:
        ctx.tool_result = left

    call.mutate("toolCall.post", post)
    with pytest.raises(MiddlewareError, match=r"ext\.post raised"):
        call.result(echo)


@pytest.mark.parametrize("answer", [ToolResult("ok", "cached"), "cached"])
def test_exec_may_answer_without_handler(call: Call, answer: Any) -> None:
    ran: list[Any] = []
    call.wrap(lambda ctx, next: answer)
    assert call.result(ran.append).output == "cached"
    assert ran == []


def test_second_next_is_refused_and_handler_runs_once(call: Call) -> None:
    ran: list[Any] = []

    async def again(ctx: ToolCallExecContext, next: Any) -> Any:
        await next(ctx)
        return await next(ctx)

    call.wrap(again)
    error = call.result(ran.append).error
    assert error is not None
    assert (error.code, len(ran)) == ("E_MIDDLEWARE", 1)
    assert "ext.again called next() a second time" in error.message


def test_next_is_called_with_context(call: Call) -> None:
    call.wrap(lambda ctx, next: next({"toolCall": {}}))
    error = call.result(echo).error
    assert error is not None
    assert "next() is called with ctx, not with dict" in error.message


def test_cancel_is_not_result(call: Call) -> None:
    ran: list[Any] = []

    def handler(args: Any) -> Any:
        raise asyncio.CancelledError

    call.mutate("toolCall.post", ran.append)
    with pytest.raises(asyncio.CancelledError):
        call.result(handler)
    assert ran == []


def test_call_without_functions_around_it_keeps_handlers_result(call: Call) -> None:
    call.wrap(partial(lambda ctx, next: next(ctx)))
    assert call.result(echo).output == {"got": {"text": "hi"}}


@pytest.mark.parametrize("point", ["toolCall.pre", "toolCall.post"])
def test_call_cancelled_meanwhile_calls_no_further_function(call: Call, point: str) -> None:
    def slow(ctx: ToolCallExecContext) -> None:
        call.cancellation.set(ToolCancelledError("enough"))

    ran: list[Any] = []
    call.mutate(point, slow)
    call.mutate(point, ran.append)
    with pytest.raises(ToolCancelledError, match="enough"):
        call.result(echo)
    assert ran == []


def test_call_cancelled_as_handler_succeeds_lacks_post(call: Call) -> None:
    def handler(args: Any) -> str:
        call.cancellation.set(ToolCancelledError("enough"))
        return "done"

    posts: list[Any] = []
    call.mutate("toolCall.post", posts.append)
    with pytest.raises(ToolCancelledError, match="enough"):
        call.result(handler)
    assert posts == []


@pytest.mark.parametrize("read", [lambda result: result.output, lambda result: result.status == "ok"])
def test_plain_exec_reading_result_must_be_async(call: Call, read: Any) -> None:
    ran: list[Any] = []
    call.wrap(lambda ctx, next: read(next(ctx)))
    error = call.result(ran.append).error
    assert error is not None
    assert "make it 'async def', and 'await next(ctx)', to read the result" in error.message
    assert ran == []


def test_replaced_metadata_is_seen_by_later_functions(call: Call) -> None:
    def pre(ctx: ToolCallExecContext) -> ToolCallExecContext:
        return replace(ctx, metadata={"by": "pre"})

    async def todays(ctx: ToolCallContext) -> Any:
        seen.append(ctx.metadata)
        ctx.metadata = {"by": "today"}
        return await ctx.next()

    async def execute(ctx: ToolCallExecContext, next: Any) -> Any:
        seen.append(ctx.metadata)
        return await next(ctx)

    seen: list[Any] = []
    call.mutate("toolCall.pre", pre)
    call.pipelines.register("coder", "toolCall", todays, extension="new")
    call.wrap(execute, priority=1)
    call.mutate("toolCall.post", lambda ctx: seen.append(ctx.metadata))
    call.result(echo)
    assert seen == [{"by": "pre"}, {"by": "today"}, {"by": "today"}]


def test_exec_changing_arguments_spares_models_arguments(call: Call) -> None:
    def execute(ctx: ToolCallExecContext, next: Any) -> Any:
        ctx.tool_call.arguments["text"] = "changed"
        return next(ctx)

    call.wrap(execute)
    assert call.result(echo).output == {"got": {"text": "changed"}}
    assert CALL.args == {"text": "hi"}
