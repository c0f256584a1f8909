import json
import os
from pathlib import Path


def handle(ctx, event):
    with Path(os.environ["HANDLED_FILE"]).open("a") as file:
        file.write(json.dumps([event.type, event.instance_key, event.input]) + "\n")
