"""Streams the events of a Turn to its followers, through a Redis stream.

:mod:`goondan_tasks.client.turn_events` defines the events and their encoding. A Turn whose events are not
kept has no stream, and nothing is written.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.client.turn_events import (
    AnswerRestarted,
    ReasoningDelta,
    TextDelta,
    Told,
    ToolAnswered,
    ToolCalled,
)
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.history import StepCall
from goondan_tasks.ledger.scripts import MOST_ENTRIES

logger = structlog.get_logger(__name__)

#: how long pieces of an answer are gathered before they are written together
GATHER_SECONDS = 0.04

_KINDS: dict[str, type[TextDelta] | type[ReasoningDelta]] = {"text": TextDelta, "reasoning": ReasoningDelta}


class TurnStream:
    """Writes entries from coroutines; an entry that cannot be written is lost, as the result has it all."""

    def __init__(self, redis: Redis, keys: Keys, event_id: str, is_followed: bool | None = None) -> None:
        self._redis = redis
        self._key = keys.turn_stream(event_id)
        self._is_followed = is_followed

    async def is_followed(self) -> bool:
        """Return whether the Turn has a stream; Redis is asked once."""
        if self._is_followed is None:
            self._is_followed = await asyncio.to_thread(self._exists)
        return self._is_followed

    async def tell(self, *events: Told) -> None:
        """Write events as one entry."""
        if events and await self.is_followed():
            await asyncio.to_thread(self._write, events)

    @asynccontextmanager
    async def gathering(self, step: int) -> AsyncIterator["Deltas"]:
        """Write the pieces that the block adds every :data:`GATHER_SECONDS`, and the rest at its end."""
        deltas, is_over = Deltas(step), asyncio.Event()
        await self.tell(AnswerRestarted(step=step, answer_id=deltas.answer_id))
        writer = asyncio.create_task(self._keep_writing(deltas, is_over))
        try:
            yield deltas
        finally:
            is_over.set()
            await writer

    async def _keep_writing(self, deltas: "Deltas", is_over: asyncio.Event) -> None:
        while not is_over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), GATHER_SECONDS)
            await self.tell(*deltas.take())
        await self.tell(*deltas.take(is_over=True))

    def _exists(self) -> bool:
        try:
            return bool(self._redis.exists(self._key))
        except RedisError as error:
            logger.warning("turn_stream.not_asked", reason=str(error))
            return False

    def _write(self, events: Sequence[Told]) -> None:
        masked = KNOWN_SECRETS.hidden_in_answer([event.to_wire() for event in events])
        add = partial(self._redis.xadd, self._key, maxlen=MOST_ENTRIES, nomkstream=True)
        # what streams.lua joins at the end
        is_answer = all(isinstance(event, TextDelta | ReasoningDelta | AnswerRestarted) for event in events)
        try:
            fields: dict[Any, Any] = {"entries": serializer.encode(masked, repairs=True)}
            add(fields | {"answer": "1"} if is_answer else fields)
        except (RedisError, serializer.NotJsonError) as error:
            logger.warning("turn_stream.not_written", reason=str(error))


@dataclass(frozen=True, slots=True)
class StepStream:
    """Streams the tool calls of one Step and their results."""

    stream: TurnStream
    step: int

    async def called(self, calls: Sequence[tuple[str, StepCall]]) -> None:
        events = [
            ToolCalled(
                step=self.step, id=call.asked.id, call_id=call_id, tool=call.tool_name, args=call.asked.args
            )
            for call_id, call in calls
        ]
        await self.stream.tell(*events)

    async def answered(self, result: ToolCallResult) -> None:
        await self.stream.tell(ToolAnswered.of(result, self.step))


class Deltas:
    """The pieces of one answer that are not written yet."""

    def __init__(self, step: int) -> None:
        self.answer_id = secrets.token_hex(4)
        self._step = step
        self._pieces: list[tuple[str, str]] = []

    def add(self, kind: str, text: str) -> None:
        if self._pieces and self._pieces[-1][0] == kind:
            self._pieces[-1] = kind, self._pieces[-1][1] + text
        else:
            self._pieces.append((kind, text))

    def take(self, *, is_over: bool = False) -> list[Told]:
        """Remove the pieces and return them as events.

        A possible beginning of a secret stays until its rest arrives, because only whole secrets are masked.
        """
        pieces, self._pieces = self._pieces, []
        if pieces and not is_over:
            kind, text = pieces.pop()
            told, rest = KNOWN_SECRETS.hidden_in_part(text)
            pieces += [(kind, told)] if told else []
            self._pieces += [(kind, rest)] if rest else []
        return [_KINDS[kind](step=self._step, text=text, answer_id=self.answer_id) for kind, text in pieces]
