"""A tool that reads a user's letters with that user's token."""

import httpx2

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.tool_api import JsonObject, ToolContext

APP = {"kind": "OAuthApp", "name": "mail"}


def register(api: ExtensionApi, config: JsonObject) -> None:
    async def letters(ctx: ToolContext, input: JsonObject) -> object:
        result = await api.oauth.get_access_token(APP, ["letters.read"])
        if result.status != "ready":
            return result.to_wire()  # a link for the user, or what is wrong
        async with httpx2.AsyncClient(base_url=config["api"]) as http:
            answer = await http.get("/letters", headers={"Authorization": f"Bearer {result.access_token}"})
        return answer.raise_for_status().json()

    api.tools.register({"name": "mail__letters", "description": "List the user's letters."}, letters)
