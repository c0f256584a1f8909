"""Turns and Steps for asyncio: the same methods, as coroutines."""

import asyncio
from functools import partial
from typing import Any

from goondan_tasks.bundle.catalog import ToolCatalog
from goondan_tasks.client.step import Step
from goondan_tasks.client.turn import Turn
from goondan_tasks.messages import JsonObject
from goondan_tasks.model_messages import StepCallResult
from goondan_tasks.steps import TurnEntry


class AsyncStep:
    """A :class:`Step` whose calls are awaited."""

    def __init__(self, step: Step) -> None:
        self._step = step

    @property
    def id(self) -> str:
        """The Step's id."""
        return self._step.id

    @property
    def index(self) -> int:
        """How many Steps the Turn has had before."""
        return self._step.index

    @property
    def catalog(self) -> ToolCatalog:
        """What the model may call."""
        return self._step.catalog

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model is told besides its messages."""
        return self._step.blocks

    async def run(
        self,
        reply: Any,
        *,
        timeout: float | None = None,
        timeout_seconds: float | None = None,
        wait_pending: bool = False,
    ) -> list[StepCallResult]:
        """Run the tool calls of the model side by side; see :meth:`Step.run`."""
        submit = partial(self._step.submit, reply, timeout_seconds=timeout_seconds)
        submitted = await asyncio.to_thread(submit)
        waits = (one.wait(timeout, wait_pending=wait_pending) for one in submitted.pending)
        return submitted.answered(await asyncio.gather(*waits))


class AsyncTurn:
    """A :class:`Turn` whose Steps are awaited."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @property
    def id(self) -> str:
        """The ``turnId`` of its calls."""
        return self._turn.id

    async def step(self, message: JsonObject | None = None, *, timeout: float | None = None) -> AsyncStep:
        """Open the next Step; see :meth:`Turn.step`."""
        pending = await asyncio.to_thread(self._turn.ask, message)
        opened = await pending.wait(timeout)
        return AsyncStep(await asyncio.to_thread(self._turn.take, opened))

    async def record(self) -> list[TurnEntry]:
        """Return what is kept of the Turn; see :meth:`Turn.record`."""
        return await asyncio.to_thread(self._turn.record)
