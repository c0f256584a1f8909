"""The documents' own example of work that ends later (002 §6.3)."""

from goondan_tasks.tool_api import JsonObject, ToolContext, ToolHandler


async def start_build_async(project: str) -> str:
    return f"build-{project}"


async def start(ctx: ToolContext, input: JsonObject) -> JsonObject:
    build_id = await start_build_async(input["project"])
    return {
        "__async": True,
        "handle": build_id,
        "message": "빌드가 시작되었습니다. 완료되면 알려드리겠습니다.",
    }


handlers: dict[str, ToolHandler] = {"start": start}
