"""An agent in Python that tools in TypeScript ask."""


def handle(ctx, event):
    return {"heard": event.input}
