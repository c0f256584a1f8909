import os
from pathlib import Path


def handle(ctx, event):
    with Path(os.environ["HANDLED_FILE"]).open("a") as file:
        file.write(f"{event.input}\n")
