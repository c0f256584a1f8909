"""What a follower has read of the stream of a Turn: entries become events, each with its cursor.

A stream of which nothing is known is read from its beginning, so that repetitions and void answers are found;
events up to the cursor are not passed on again. ``streams.lua`` says what the entries are.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Self

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.client.turn_events import (
    TOLD,
    AnswerRestarted,
    EventFilter,
    TurnEvent,
    WholeAnswer,
)
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import shown

logger = logging.getLogger(__name__)

_CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})\.(\d{1,9})", re.ASCII)

Rows = Iterable[tuple[bytes, dict[bytes, bytes]]]


class Position(NamedTuple):
    """A place in a stream: the id of an entry, and how many of its events are before the place."""

    ms: int = 0
    number: int = 0
    passed: int = 0

    @classmethod
    def of(cls, cursor: Any) -> Self:
        """Read a cursor; ``None`` is the beginning.

        Raises:
            ToolInputValidationError: it is none.
        """
        if cursor is None:
            return cls()
        found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
        if found is None:
            raise ToolInputValidationError(
                f"{shown(cursor)} is not a cursor of a stream.",
                suggestion="Pass on the cursor of the last event that came, or follow from the beginning.",
            )
        return cls(*map(int, found.groups()))

    @classmethod
    def of_entry(cls, entry_id: str, passed: int = 0) -> Self:
        """Return a place by the id of an entry."""
        ms, _, number = entry_id.partition("-")
        return cls(int(ms), int(number), passed)

    @property
    def cursor(self) -> str:
        return f"{self.ms}-{self.number}.{self.passed}"


@dataclass(frozen=True, slots=True)
class FollowedEvent:
    """An event of a Turn or call. Following it with ``after=cursor`` yields what comes after the event."""

    event: TurnEvent
    cursor: str


class StreamReading:
    """Turns the entries of one stream into events."""

    def __init__(self, turn_id: str, after: Position | None = None) -> None:
        self._turn_id = turn_id
        self._after = after or Position()
        self._filter = EventFilter()
        #: the id of the last entry that was read
        self.last_id = "0-0"
        #: whether the last entry ends the stream; more may follow if its script was broken off
        self.has_ended = False
        self._at = self._after

    @property
    def cursor(self) -> str:
        """The cursor of what is not in the stream: the progress, and the end."""
        return self._at.cursor

    def taken(self, rows: Rows) -> Iterator[FollowedEvent]:
        """Take entries, and yield the events that are new to the follower."""
        for entry_id, fields in rows:
            self.last_id, self.has_ended = entry_id.decode(), False
            for count, entry in enumerate(_entries(fields.get(b"entries", b"[]")), 1):
                self._at = max(self._at, Position.of_entry(self.last_id, count))
                yield from self._events(entry, count)

    def _events(self, entry: JsonObject, count: int) -> Iterator[FollowedEvent]:
        if entry.get("type") == "end":
            self.has_ended = True
            return
        try:
            if entry.get("type") == "answer":
                yield from self._whole(WholeAnswer.model_validate(entry))
                return
            told = TOLD.validate_python(entry)
        except ValidationError as error:  # a newer worker's, or damaged: the result is what counts
            logger.info("an entry of the stream of %s cannot be read: %s", self._turn_id, error)
            return
        place = Position.of_entry(self.last_id, count)
        before = place._replace(passed=count - 1)
        for event in self._filter.passed(told):
            # a restart that is made up here comes before the event of the entry
            is_own = event is told
            if place > self._after:
                yield FollowedEvent(event, (place if is_own else before).cursor)

    def _whole(self, answer: WholeAnswer) -> Iterator[FollowedEvent]:
        place, since = Position.of_entry(self.last_id, answer.count), Position.of_entry(answer.since)
        begun = place._replace(passed=0).cursor  # from there, all of it is told again
        is_told = place <= self._after
        if since <= self._after < place and not self._filter.knows(answer.step):
            # which of the pieces the follower has is not known any more
            yield FollowedEvent(AnswerRestarted(step=answer.step, answer_id=answer.answer_id), begun)
        events = list(self._filter.whole(answer))
        for number, event in enumerate(events, 1):
            if not is_told:
                yield FollowedEvent(event, place.cursor if number == len(events) else begun)


def rows_of_streams(found: Any) -> Iterator[tuple[bytes, Rows]]:
    """Return the entries of each stream, as either version of Redis' protocol gives them."""
    if isinstance(found, dict):  # RESP3: a list of lists of entries
        yield from ((key, [*chain.from_iterable(rows)]) for key, rows in found.items())
    else:
        yield from found or ()


def _entries(data: bytes) -> list[JsonObject]:
    try:
        entries = serializer.decode(data)
    except serializer.NotJsonError:
        return []
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
