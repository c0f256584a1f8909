"""The tool that writes into chats. Workers have the bot's token in their environment; models never see it."""

import json
import os
from urllib.request import Request, urlopen

from goondan_tasks.tool_api import JsonObject, ToolContext, tool


@tool
def send(ctx: ToolContext, chat_id: str, text: str) -> JsonObject:
    """Writes a message into a chat."""
    url = f"{os.environ['TELEGRAM_URL']}/bot{os.environ['TELEGRAM_BOT_TOKEN']}/sendMessage"
    body = json.dumps({"chat_id": chat_id, "text": text}).encode()
    request = Request(url, body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as response:
        sent = json.load(response)["result"]
    return {"message": sent["message_id"]}
