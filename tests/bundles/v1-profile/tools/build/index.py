"""002 §6.3."""


async def start_build_async(project):
    return f"build-{project}"


async def start(ctx, input):
    build_id = await start_build_async(input["project"])
    return {
        "__async": True,
        "handle": build_id,
        "message": "빌드가 시작되었습니다. 완료되면 알려드리겠습니다.",
    }


handlers = {"build.start": start}
