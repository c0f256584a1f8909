"""A server below a guard ends with whoever waits for it, even if that is cut short."""

import asyncio
import sys

import pytest

from tests.waiting import wait_until
from workers.mcp.stdio import Command, StdioTransport

#: it does not end with its input
STUBBORN = Command((sys.executable, "-c", "import time; time.sleep(600)"))


async def comes_to_an_end(transport: StdioTransport) -> None:
    """Wait until the guard has ended, which ends after all that it guards."""
    await asyncio.to_thread(wait_until, lambda: transport._guard.process.returncode is not None)


def test_a_server_whose_stop_is_cancelled_ends() -> None:
    async def main() -> None:
        transport = StdioTransport(STUBBORN, on_end=lambda: None, on_line=lambda _: None, hide=str)
        for stream in await transport.__aenter__():
            stream.close()
        leaving = asyncio.create_task(transport.__aexit__(None, None, None))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await comes_to_an_end(transport)

    asyncio.run(main())


def test_a_server_whose_start_is_cancelled_ends() -> None:
    async def main() -> None:
        transport = StdioTransport(STUBBORN, on_end=lambda: None, on_line=lambda _: None, hide=str)
        starting = asyncio.create_task(transport.__aenter__())
        await asyncio.sleep(0)  # it has started, and is being connected
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await comes_to_an_end(transport)

    asyncio.run(main())
