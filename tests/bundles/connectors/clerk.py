import json
import os
from pathlib import Path


def handle(ctx, event):
    line = {"agent": ctx.agent_name, "instance": event.instance_key, "input": event.input, "type": event.type}
    line |= {"source": event.source.to_wire(), "metadata": event.metadata, "auth": event.auth}
    with Path(os.environ["HANDLED_FILE"]).open("a") as file:
        file.write(json.dumps(line) + "\n")
