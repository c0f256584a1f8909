import json
import os
from pathlib import Path


def send(ctx, arguments):
    with Path(os.environ["HANDLED_FILE"]).with_name("posted").open("a") as file:
        file.write(json.dumps(arguments | {"agent": ctx.agent_name}) + "\n")


handlers = {"send": send}
