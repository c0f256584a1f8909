import json
import os
from pathlib import Path


def handle(ctx, event):
    line = {"agent": ctx.agent_name, "instance": event.instance_key, "input": event.input, "type": event.type}
    line |= {"source": event.source.to_wire(), "metadata": event.metadata, "auth": event.auth}
    line |= {"turn": ctx.turn_id, "trace": ctx.trace_id}
    with Path(os.environ["HANDLED_FILE"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
    return event.input.removeprefix("answer ") if event.input.startswith("answer ") else None
