"""Browsers that keep pages of the console open: ``python -m benchmarks.programs.followers URL COUNT``.

Each holds a stream of server-sent events, and reads what comes. The program says ``ready`` when each has had
its page, and what it has received, as JSON, when its standard input ends.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

#: the pages, which the followers open one after the other
PATHS = (
    "",
    "/calls",
    "/calls?status=error",
    "/calls?agent=bench",
    "/conversations",
    "/traces",
    "/approvals",
    "/dead-letters",
    "/queues",
    "/workers",
)


@dataclass(slots=True)
class Received:
    """What has come so far."""

    events: int = 0
    bytes: int = 0


async def follow(url: str, path: str, received: Received, has_page: asyncio.Event) -> None:
    """Hold the stream of a page until the task is cancelled."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    head = f"GET {parts.path}{path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/event-stream\r\n\r\n"
    writer.write(head.encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{path}: {status!r}")
    while block := await reader.read(65_536):
        received.bytes += len(block)
        if block.endswith((b"\n\n", b"\n\n\r\n")):
            received.events += 1
            has_page.set()
    raise RuntimeError(f"{path}: the stream has ended")


async def main(url: str, count: int) -> None:
    """Follow until standard input ends."""
    received, pages = Received(), [asyncio.Event() for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(follow(url, PATHS[number % len(PATHS)], received, has_page))
            for number, has_page in enumerate(pages)
        ]
        for has_page in pages:
            await has_page.wait()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
    print(json.dumps({"events": received.events, "bytes": received.bytes}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
