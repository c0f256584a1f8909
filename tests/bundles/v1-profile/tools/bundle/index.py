"""002 §11.2."""


async def open_changeset(ctx, input):
    result = await ctx.swarm_bundle.open_changeset({"reason": input.get("reason")})
    return result


async def commit_changeset(ctx, input):
    result = await ctx.swarm_bundle.commit_changeset(
        {"changesetId": input["changesetId"], "message": input.get("message")}
    )
    return result


handlers = {
    "swarmBundle.openChangeset": open_changeset,
    "swarmBundle.commitChangeset": commit_changeset,
}
