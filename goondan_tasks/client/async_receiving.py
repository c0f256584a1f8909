"""Waiting for an agent's next event without blocking the event loop."""

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import LOOK_SECONDS
from goondan_tasks.client.received_event import ReceivedEvent


class Receiving:
    """One wait, on a thread of its own: the loop's threads stay free for short trips."""

    def __init__(self, client: Client, agent: str, instance_key: str | None, timeout: float | None) -> None:
        self._client = client
        self._agent = agent
        self._instance_key = instance_key
        self._end = None if timeout is None else time.monotonic() + timeout
        self._stopped = threading.Event()

    async def result(self) -> ReceivedEvent | None:
        """Return what :meth:`Client.receive` does; cancelled, give an event back that comes all the same."""
        with_thread = ThreadPoolExecutor(1, thread_name_prefix="goondan-receive")
        future = with_thread.submit(self._receive)
        with_thread.shutdown(wait=False)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._stopped.set()
            future.add_done_callback(self._give_back)
            raise

    def _receive(self) -> ReceivedEvent | None:
        while True:
            rest = LOOK_SECONDS if self._end is None else max(0.0, self._end - time.monotonic())
            received = self._client.receive(self._agent, self._instance_key, min(LOOK_SECONDS, rest))
            is_over = self._end is not None and time.monotonic() >= self._end
            if received is not None or is_over or self._stopped.is_set():
                return received

    def _give_back(self, future: "Future[ReceivedEvent | None]") -> None:
        if future.cancelled() or future.exception() is not None:
            return
        received = future.result()
        if received is not None:
            self._client.give_back(received)
