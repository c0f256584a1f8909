"""Looks at pages that are open in browsers: all who see the same share one look.

A page is written again every :data:`LOOK_SECONDS` while a browser follows it. One look follows the other, and
all together take at most :data:`SHARE` of the time, which is that of Redis as well: where many different
pages are open, or expensive ones, or the machine is busy, each comes later, and the swarm does not
suffer.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Hashable
from dataclasses import dataclass, field

from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError

#: how often an open page is looked at
LOOK_SECONDS = 2.0
#: the part of the time that all looks may take
SHARE = 0.1
#: after so many looks a page is sent although it has not changed
_LOOKS_UNCHANGED = 10

#: blocks; returns what a page shows, ``None`` if nothing is to be followed; raises errors of the tree
Look = Callable[[], str | None]


@dataclass(slots=True)
class _Watch:
    """A page that is followed."""

    #: what it showed at the last look, and how often that was to be sent
    text: str = ""
    version: int = 0
    #: whether there is nothing to follow any more
    is_over: bool = False
    followers: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    def move(self) -> None:
        """Wake all who follow it."""
        self.moved.set()
        self.moved = asyncio.Event()


class Looks:
    """The pages that are open at one server; used on its event loop."""

    def __init__(self) -> None:
        self._watches: dict[Hashable, _Watch] = {}
        self._turn = asyncio.Lock()

    async def followed(self, key: Hashable, look: Look) -> AsyncGenerator[str]:
        """Yield the page of ``key`` as it is, and each time that it has changed, until it is gone.

        ``look`` is what the first follower of a key brings; those of the others must show the same.
        """
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch()
            watch.task = asyncio.create_task(self._watched(key, watch, look))
        watch.followers += 1
        seen = 0
        try:
            while True:
                moved = watch.moved
                if watch.version > seen:
                    seen = watch.version
                    yield watch.text
                elif watch.is_over:
                    return
                else:
                    await moved.wait()
        finally:
            watch.followers -= 1
            if not watch.followers:
                self._forget(key, watch)
                if watch.task is not None:
                    watch.task.cancel()

    async def _watched(self, key: Hashable, watch: _Watch, look: Look) -> None:
        unchanged = 0
        try:
            while True:
                text = await self._looked(look)
                unchanged += 1
                if text is not None and (text != watch.text or unchanged >= _LOOKS_UNCHANGED):
                    watch.text, unchanged = text, 0
                    watch.version += 1
                    watch.move()
                await asyncio.sleep(LOOK_SECONDS)
        except GoondanError:  # what it shows is gone: a reload says so
            pass
        finally:
            watch.is_over = True
            self._forget(key, watch)
            watch.move()

    def _forget(self, key: Hashable, watch: _Watch) -> None:
        if self._watches.get(key) is watch:
            del self._watches[key]

    async def _looked(self, look: Look) -> str | None:
        """Look at a page, one after the other; the page stays as it is until Redis is back."""
        async with self._turn:
            text, seconds = await asyncio.to_thread(_timed, look)
            await asyncio.sleep(seconds / SHARE - seconds)
            return text


def _timed(look: Look) -> tuple[str | None, float]:
    """Return what a look sees, and how many seconds it took: none of a Redis that is away."""
    begun = time.monotonic()
    with contextlib.suppress(BrokerUnreachableError):
        return look(), time.monotonic() - begun
    return None, 0.0
