"""A tool of today: its context has no oauth and no swarm_bundle."""


def boil(ctx, input):
    return {"oauth": hasattr(ctx, "oauth"), "swarmBundle": hasattr(ctx, "swarm_bundle"), "at": ctx.agent_name}


def burst(ctx, input):
    raise RuntimeError("too hot")


handlers = {"boil": boil, "burst": burst}
