"""The virtual clock of the processes of a walk: it passes only when the walk says so."""

import asyncio
from collections.abc import Callable

import pytest

#: the modules of the product that wait, or keep something for a while, by the clock of their process
_MODULES = ("workers.instances.workdirs", "workers.turns.steps")


class VirtualClock:
    """The time in seconds, and what happens while a process sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.on_sleep: Callable[[float], object] = lambda _: None

    def monotonic(self) -> float:
        """Return the time, as ``time.monotonic`` does."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let others go on, as ``time.sleep`` does."""
        self.on_sleep(seconds)


#: that of the walk which is taken now
VIRTUAL = VirtualClock()


class _Inline:
    """What the walks need of ``asyncio``, without an event loop."""

    CancelledError = asyncio.CancelledError

    @staticmethod
    async def to_thread(function: Callable[..., object], *args: object, **fields: object) -> object:
        return function(*args, **fields)


def patch_clocks(patch: pytest.MonkeyPatch) -> None:
    """Let the modules read the virtual clock."""
    for module in _MODULES:
        for name in ("monotonic", "sleep"):
            patch.setattr(f"{module}.{name}", getattr(VIRTUAL, name), raising=False)
    # what a worker leaves to a thread is done at once
    patch.setattr("workers.thinking.model_calls.asyncio", _Inline)
    patch.setattr("workers.agents.handoffs._on_thread", lambda function: function())
