"""Tools that need a user's token: one that blocks, one that does not."""

import json
import urllib.request

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.tool_api import ToolContext

APP = {"kind": "OAuthApp", "name": "slack-bot"}


def register(api: ExtensionApi, config: dict) -> None:
    def post(ctx: ToolContext, input: dict) -> dict:
        result = api.oauth.get_access_token(APP, ["chat:write"])
        if result.status != "ready":
            return result.to_wire()
        request = urllib.request.Request(config["api"])
        request.add_header("Authorization", f"Bearer {result.access_token}")
        with urllib.request.urlopen(request) as answer:
            return {"ok": True, "as": json.load(answer)["sub"]}

    async def check(ctx: ToolContext, input: dict) -> dict:
        result = await api.oauth.get_access_token("OAuthApp/slack-bot", input.get("scopes"))
        return {"status": result.status, "code": result.error.code if result.status == "error" else None}

    async def leak(ctx: ToolContext, input: dict) -> dict:
        result = await api.oauth.get_access_token(APP, ["chat:write"])
        api.logger.warning("leaking", text=f"the token is {result.access_token}")
        if input.get("fail"):
            raise RuntimeError(f"cannot use {result.access_token}")
        return result.to_wire()

    api.tools.register({"name": "slack__post"}, post)
    api.tools.register({"name": "slack__check"}, check)
    api.tools.register({"name": "slack__leak"}, leak)
