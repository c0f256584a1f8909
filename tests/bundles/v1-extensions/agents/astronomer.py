"""Opens a Step, calls what the event says, and answers with what came of it."""


def handle(ctx, event):
    with ctx.step({"role": "user", "content": event.input}) as step:
        results = step.run([{"id": "c1", "name": event.input, "args": {"degrees": 9}}])
    return {"tools": list(step.catalog.names), "status": results[0].status, "blocks": list(step.blocks)}
