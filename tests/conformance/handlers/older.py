"""Functions of an older extension around each call, which change nothing; one notes that it begins."""

from typing import Any

from .work import note  # noqa: TID252 - a file of the same bundle


def register(api: Any) -> None:
    def unchanged(ctx: Any) -> Any:
        return ctx

    def around(ctx: Any, proceed: Any) -> Any:
        arguments = ctx.tool_call.arguments
        note({**arguments, "cell": f"around-{arguments['cell']}"})
        return proceed(ctx)

    api.pipelines.mutate("toolCall.pre", unchanged)
    api.pipelines.wrap("toolCall.exec", around)
    api.pipelines.mutate("toolCall.post", unchanged)
