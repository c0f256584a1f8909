"""A server of chat completions that asks for one tool call a Step and then answers: ``CALLS SECONDS``.

It prints its URL. ``SECONDS`` is how long each answer takes.
"""

import asyncio
import json
import sys
from typing import Any


def completion(asked: dict[str, Any], calls: int) -> bytes:
    """Return the answer to a request, with its head."""
    messages = asked["messages"]
    last = max(place for place, one in enumerate(messages) if one["role"] == "user")
    step = sum(one["role"] == "tool" for one in messages[last:])
    message: dict[str, Any] = {"role": "assistant", "content": "done"}
    if step < calls:
        function = {"name": "noop__run", "arguments": "{}"}
        call = {"id": f"call_{step}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if step < calls else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "any", "usage": usage}
    data = json.dumps({**body, "choices": [choice]}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(data),
        data,
    )


async def serve(calls: int, seconds: float) -> None:
    """Serve until the process is killed."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):  # the client has closed it
                writer.close()
                return
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:] if line)
            asked = json.loads(await reader.readexactly(int(fields[b"content-length"])))
            await asyncio.sleep(seconds)
            writer.write(completion(asked, calls))
            await writer.drain()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=1_000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
