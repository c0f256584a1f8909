async def connect(ctx):
    raise ConnectionError("the chat is away")
