"""Asking an agent without blocking the event loop."""

import asyncio
import threading
from collections.abc import Callable

from goondan_tasks.client.client import Client
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.messages import ToolCall

Asked = tuple[ToolCall, PendingCall]


class Asking:
    """A request on its way to the ledger: a thread cannot be stopped, so it may get there all the same."""

    def __init__(self, client: Client, ask: Callable[[], Asked]) -> None:
        self._client = client
        self._ask = ask
        self._is_unwanted = threading.Event()
        self._asked: list[PendingCall] = []

    async def result(self) -> Asked:
        """Return the request, once it stands; cancelled, call it off as soon as it does."""
        try:
            return await asyncio.to_thread(self._hand_over)
        except asyncio.CancelledError:
            self._is_unwanted.set()
            await asyncio.shield(asyncio.to_thread(self._call_off))
            raise

    def _hand_over(self) -> Asked:
        call, pending = self._ask()
        self._asked.append(pending)
        if self._is_unwanted.is_set():
            self._call_off()
        return call, pending

    def _call_off(self) -> None:
        for pending in self._asked:
            self._client.call_off(pending)
