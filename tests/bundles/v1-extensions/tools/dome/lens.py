"""A Tool of today."""


def focus(ctx, input):
    return {"got": input, "context": type(ctx).__name__}


handlers = {"focus": focus}
