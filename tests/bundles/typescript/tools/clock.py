"""A tool in Python."""


def zone(ctx, input):
    return {"zone": "UTC"}


handlers = {"zone": zone}
