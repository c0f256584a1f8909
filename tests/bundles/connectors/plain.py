"""A plain function: ``emit`` and the cursor block."""

import json
from pathlib import Path

from goondan_tasks.connector_api import ConnectorEvent, TextMessage


def connect(ctx):
    for number in range(3):
        event = ConnectorEvent(name="count", message=TextMessage(text=str(number)), instance_key="plain")
        accepted = ctx.emit(event)
        ctx.cursor.set({"last": number})
        with Path(ctx.config["SEEN"]).open("a") as file:
            file.write(json.dumps({"agent": accepted.agent, "cursor": ctx.cursor.get()}) + "\n")
