"""What happens in a Turn, told to a client that follows it: a Redis stream that the client has made.

The events, and how they are written, are those of :mod:`goondan_tasks.client.turn_events`. Nothing is written
of a Turn that nobody follows.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

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
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.redaction import KNOWN_SECRETS
from goondan_tasks.steps import StepCall

logger = structlog.get_logger(__name__)

#: how long pieces of an answer are gathered before they are written together
GATHER_SECONDS = 0.04

#: how many entries of a Turn are kept, about
MOST_ENTRIES = 20_000

_KINDS: dict[str, type[TextDelta] | type[ReasoningDelta]] = {"text": TextDelta, "reasoning": ReasoningDelta}


class TurnStream:
    """Writes entries from coroutines; what cannot be written is lost, since the result tells the answer."""

    def __init__(self, redis: Redis, keys: Keys, event_id: str, is_followed: bool | None = None) -> None:
        self._redis = redis
        self._key = keys.turn_stream(event_id)
        self._is_followed = is_followed

    async def is_followed(self) -> bool:
        """Return whether a client follows the Turn; asked once."""
        if self._is_followed is None:
            self._is_followed = await asyncio.to_thread(self._exists)
        return self._is_followed

    async def tell(self, *events: Told) -> None:
        """Write events in one entry."""
        if events and await self.is_followed():
            await asyncio.to_thread(self._write, events)

    @asynccontextmanager
    async def gathering(self, step: int) -> AsyncIterator["Deltas"]:
        """Write the pieces of an answer every :data:`GATHER_SECONDS`, and the rest at the end."""
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
        shown = KNOWN_SECRETS.hidden_in_answer([event.to_wire() for event in events])
        add = partial(self._redis.xadd, self._key, maxlen=MOST_ENTRIES, nomkstream=True)
        try:
            add({"entries": serializer.encode(shown)})
        except (RedisError, serializer.NotJsonError) as error:  # half of a character, say
            logger.warning("turn_stream.not_written", reason=str(error))


@dataclass(frozen=True, slots=True)
class StepStream:
    """Tells of the tool calls of one Step."""

    stream: TurnStream
    step: int

    async def called(self, calls: Sequence[tuple[str, StepCall]]) -> None:
        """Tell of calls, each with its identity."""
        told = [
            ToolCalled(
                step=self.step, id=call.asked.id, call_id=call_id, tool=call.tool_name, args=call.asked.args
            )
            for call_id, call in calls
        ]
        await self.stream.tell(*told)

    async def answered(self, result: ToolCallResult) -> None:
        """Tell of a result."""
        await self.stream.tell(ToolAnswered.of(result, self.step))


class Deltas:
    """The pieces of one answer that were not written yet."""

    def __init__(self, step: int) -> None:
        self.answer_id = secrets.token_hex(4)
        self._step = step
        self._pieces: list[tuple[str, str]] = []

    def add(self, kind: str, text: str) -> None:
        """Add a piece."""
        if self._pieces and self._pieces[-1][0] == kind:
            self._pieces[-1] = kind, self._pieces[-1][1] + text
        else:
            self._pieces.append((kind, text))

    def take(self, *, is_over: bool = False) -> list[Told]:
        """Return the events of the pieces, which are not returned again.

        What may be the beginning of a secret waits for the rest of it: parts of one are not recognized.
        """
        pieces, self._pieces = self._pieces, []
        if pieces and not is_over:
            kind, text = pieces.pop()
            end = len(text) - KNOWN_SECRETS.partial_length(text)
            pieces += [(kind, text[:end])] if end else []
            self._pieces += [(kind, text[end:])] if end < len(text) else []
        return [_KINDS[kind](step=self._step, text=text, answer_id=self.answer_id) for kind, text in pieces]
