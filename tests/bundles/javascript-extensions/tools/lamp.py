from typing import Any

from goondan_tasks.errors import ToolError


async def shine(ctx: Any, input: Any) -> Any:
    return {"got": input, "instance": ctx.instance_key}


def refuse(ctx: Any, input: Any) -> Any:
    raise ToolError("No oil.", code="E_NO_OIL", suggestion="Fill it up.")


async def brief(ctx: Any, input: Any) -> Any:
    return "brief"


handlers = {"shine": shine, "refuse": refuse, "brief": brief}
