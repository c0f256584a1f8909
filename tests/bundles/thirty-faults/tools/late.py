"""A file whose handlers are not its exports."""


def run(ctx, input):
    return "ran"


handlers = {"run": run, "halt": run}
