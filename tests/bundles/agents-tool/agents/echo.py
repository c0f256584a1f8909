"""Says what it was told, and writes it down."""


def handle(ctx, event):
    if event.input == "fail":
        raise ValueError("told to fail")
    with (ctx.workdir / "heard.txt").open("a", encoding="utf-8") as file:
        file.write(f"{event.type} {event.input}\n")
    return {"heard": event.input, "type": event.type, "metadata": event.metadata, "in": ctx.instance_key}
