"""The points of the older version's pipelines."""

from typing import Any

import pytest

from workers.extensions.pipelines import AgentPipelines
from workers.v1.chains import MUTATOR_POINTS


def same(ctx: Any) -> Any:
    return ctx


def around(ctx: Any, next: Any) -> Any:
    return next(ctx)


def refusal_of_mutate(point: Any, function: Any = same, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        AgentPipelines().v1.mutate("coder", point, function, extension="ext", **options)
    return str(caught.value)


def refusal_of_wrap(point: Any, function: Any = around, **options: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        AgentPipelines().v1.wrap("coder", point, function, extension="ext", **options)
    return str(caught.value)


@pytest.mark.requirement("v1.pipeline-registration")
def test_mutators_are_ordered_by_priority_then_registration() -> None:
    pipelines = AgentPipelines()
    for name, priority in (("late", 10), ("early", -1), ("later", 10), ("middle", 0)):
        pipelines.v1.mutate("coder", "step.tools", same, extension="ext", priority=priority, name=name)

    names = [mutator.name for mutator in pipelines.v1.mutators("coder", "step.tools")]
    assert names == ["ext.early", "ext.middle", "ext.late", "ext.later"]


def test_points_and_agents_stay_separate_and_clear_together() -> None:
    pipelines = AgentPipelines()
    for point in MUTATOR_POINTS:
        pipelines.v1.mutate("coder", point, same, extension="ext")
    pipelines.v1.wrap("coder", "toolCall.exec", around, extension="ext")

    assert len(pipelines.v1.mutators("coder", *MUTATOR_POINTS)) == len(MUTATOR_POINTS)
    assert pipelines.v1.mutators("planner", *MUTATOR_POINTS) == ()
    assert pipelines.v1.with_calls == {"coder"}

    pipelines.clear("coder")
    assert pipelines.v1.mutators("coder", *MUTATOR_POINTS) == pipelines.layers("coder", "toolCall") == ()
    assert pipelines.v1.with_calls == frozenset()


def test_functions_at_steps_and_turns_spare_calls() -> None:
    pipelines = AgentPipelines()
    pipelines.v1.mutate("coder", "step.pre", same, extension="ext")
    pipelines.v1.mutate("coder", "turn.post", same, extension="ext")
    assert pipelines.v1.with_calls == frozenset()


@pytest.mark.parametrize("point", ["step.llmCall", "step.llmInput", "step.llmError"])
def test_call_of_model_is_not_point_here(point: str) -> None:
    assert "The producer calls" in refusal_of_mutate(point)
    assert "The producer calls" in refusal_of_wrap(point)


@pytest.mark.parametrize("point", ["workspace.repoAvailable", "workspace.worktreeMounted"])
def test_workspace_points_are_refused_with_alternative(point: str) -> None:
    assert "ctx.workdir" in refusal_of_mutate(point)


def test_hint_distinguishes_wrong_kind_from_unknown_point() -> None:
    assert "Use api.pipelines.wrap('toolCall.exec', …)." in refusal_of_mutate("toolCall.exec")
    assert "Use api.pipelines.mutate('toolCall.pre', …)." in refusal_of_wrap("toolCall.pre")
    assert "Did you mean 'step.tools'?" in refusal_of_mutate("step.tool")
    assert "Did you mean 'toolCall.exec'?" in refusal_of_wrap("toolcall.exec")


@pytest.mark.parametrize("point", ["", None, 5, {"point": "step.pre"}])
def test_value_other_than_point_is_refused(point: Any) -> None:
    assert "is not a point for this" in refusal_of_mutate(point)
    assert "is not a point for this" in refusal_of_wrap(point)


def test_functions_with_wrong_parameters_are_refused() -> None:
    assert "(ctx), and returns it" in refusal_of_mutate("step.pre", around)
    assert "(ctx, next)" in refusal_of_wrap("toolCall.exec", same)
    assert "not str" in refusal_of_mutate("step.pre", "same")
    assert "not NoneType" in refusal_of_wrap("toolCall.exec", None)


@pytest.mark.parametrize("priority", [{"priority": 1}, "1", 1.5, True, None])
def test_priority_is_whole_number(priority: Any) -> None:
    assert "a priority is a whole number" in refusal_of_mutate("step.pre", priority=priority)
    assert "a priority is a whole number" in refusal_of_wrap("toolCall.exec", priority=priority)
