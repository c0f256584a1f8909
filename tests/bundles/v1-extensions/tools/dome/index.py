"""A Tool of the older version."""


def turn(ctx, input):
    return {"degrees": input["degrees"], "turnId": ctx.turn.id}


def jam(ctx, input):
    raise RuntimeError("it is stuck")


handlers = {"dome.turn": turn, "dome.jam": jam}
