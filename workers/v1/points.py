"""The points of the older version's pipelines that there are here, and why others are not (002 §5.1)."""

from typing import Literal, get_args

from goondan_tasks.wording import hint

MutatorPoint = Literal[
    "turn.pre",
    "turn.post",
    "step.pre",
    "step.config",
    "step.tools",
    "step.blocks",
    "step.post",
    "toolCall.pre",
    "toolCall.post",
]

MUTATOR_POINTS: tuple[MutatorPoint, ...] = get_args(MutatorPoint)

#: those before a Step opens, in their order
BEFORE_STEP: tuple[MutatorPoint, ...] = ("step.pre", "step.config", "step.tools", "step.blocks")

#: the only one that functions are put around
EXEC = "toolCall.exec"

_MODEL_CALL = (
    "The agent's brain calls its model, not a worker: change what the model is shown in 'step.tools' and "
    "'step.blocks', and the rest in the brain."
)
_WORKSPACE = "No repository is checked out for an instance; a tool's directory is ctx.workdir."

_NOT_HERE = {
    "step.llmCall": _MODEL_CALL,
    "step.llmInput": _MODEL_CALL,
    "step.llmError": _MODEL_CALL,
    "workspace.repoAvailable": _WORKSPACE,
    "workspace.worktreeMounted": _WORKSPACE,
}


def mutator_point(point: str) -> MutatorPoint:
    """Return the point of that name, whose context functions change.

    Raises:
        ValueError: there is no such point here; it says what to use instead.
    """
    found = next((one for one in MUTATOR_POINTS if one == point), None)
    if found is None:
        raise ValueError(_refusal(point, f"Use api.pipelines.wrap({EXEC!r}, …)." if point == EXEC else None))
    return found


def require_exec(point: str) -> None:
    """Let only the point pass that functions are put around.

    Raises:
        ValueError: it is another one; it says what to use instead.
    """
    if point != EXEC:
        is_mutators = point in MUTATOR_POINTS
        raise ValueError(_refusal(point, f"Use api.pipelines.mutate({point!r}, …)." if is_mutators else None))


def _refusal(point: str, instead: str | None) -> str:
    what_to_do = instead or _NOT_HERE.get(str(point)) or hint(str(point), (*MUTATOR_POINTS, EXEC))
    return f"{point!r} is no point for this. {what_to_do}"
