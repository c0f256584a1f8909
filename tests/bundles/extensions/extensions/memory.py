"""Counts an instance's calls, from async code and from plain code, and offers tools of its own."""


async def register(api):
    async def counted(ctx, input):
        count = await api.state.get("count", 0) + 1
        await api.state.set("count", count)
        return count

    def recalled(ctx, input):
        return api.state.get(input["key"], "nothing", instance_key=input.get("instance"))

    def grown(ctx, input):
        api.tools.register({"name": input["name"]}, lambda ctx, input: "grown")
        return "registered"

    def withered(ctx, input):
        return api.tools.unregister(input["name"])

    api.tools.register({"name": "memory__count"}, counted, policy={"idempotent": True})
    api.tools.register({"name": "memory__recall"}, recalled)
    api.tools.register({"name": "memory__grow"}, grown)
    api.tools.register({"name": "memory__wither"}, withered)
