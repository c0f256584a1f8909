"""The threads that ``asyncio.to_thread`` uses: few, and those of handlers and extensions."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def take_default_threads_away() -> None:
    """Let ``asyncio.to_thread`` fail at once on the loop that runs here, where it would have to wait."""
    threads = ThreadPoolExecutor(1)
    threads.shutdown()
    asyncio.get_running_loop().set_default_executor(threads)
