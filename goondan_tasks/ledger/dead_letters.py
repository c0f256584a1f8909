"""Dead letters: calls whose every run ended with the death of its worker (DESIGN "Delivery" rules 4 and 9),
and messages that held no call.

A call comes into the index of its agent when its end is stored (``finish.lua``), and leaves it when it is
dropped or when its record runs out.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TypedDict, TypeVar

from broker_config.scripts import run_script_calls
from goondan_tasks.errors import CallNotFoundError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord

#: so many records are read in one trip
BATCH = 200

T = TypeVar("T")


class LetterFilter(TypedDict, total=False):
    """Which dead letters are meant."""

    #: a glob of full tool names
    tool: str | None
    #: seconds that have passed since the call died: at least
    older_than: float | None
    #: the same: at most
    newer_than: float | None


class DeadLetters:
    """The dead letters of one ledger; raises ``redis.exceptions.RedisError`` as it comes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._redis = ledger.redis
        self._keys = ledger.keys

    def find(
        self,
        agents: Iterable[str],
        *,
        tool: str | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
    ) -> Iterator[CallRecord]:
        """Yield the dead letters of ``agents``, the latest first; one that cannot be read is left out."""
        ids = self._ids(agents, *self._ledger.moments(older_than, newer_than))
        for batch in batches(ids):
            for record in self._ledger.records(batch):
                if record is not None and (tool is None or fnmatchcase(record.call.tool_name, tool)):
                    yield record

    def has(self, record: CallRecord) -> bool:
        """Return whether the call is in the index: dead, and not dropped."""
        return self._redis.zscore(self._keys.dead_letters(record.call.agent_name), record.id) is not None

    def remove(self, call_ids: Iterable[str], agents: Iterable[str]) -> int:
        """Take calls of any of ``agents`` out of the index; return how many there were.

        They are counted before: what is removed when a connection is lost is not there any more.
        """
        ids = list(call_ids)
        indexes = [self._keys.dead_letters(agent) for agent in agents] if ids else []
        with self._redis.pipeline(transaction=False) as pipe:
            for index in indexes:
                pipe.zmscore(index, ids)
            scores = itertools.chain.from_iterable(pipe.execute())
            count = sum(score is not None for score in scores)
            for index in indexes:
                pipe.zrem(index, *ids)
            pipe.execute()
        return count

    def note_replayed(self, records: Sequence[CallRecord], by: Sequence[str]) -> None:
        """Note which call replays each of ``records`` now (``replayed.lua``)."""
        replayed = self._ledger.replayed
        script_calls = [replayed(old.id, new, old.replays + 1) for old, new in zip(records, by, strict=True)]
        run_script_calls(self._redis, script_calls)

    def _ids(self, agents: Iterable[str], earliest: float, latest: float) -> list[str]:
        with self._redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrangebyscore(self._keys.dead_letters(agent), earliest, latest, withscores=True)
            rows = [row for answer in pipe.execute() for row in answer]
        return [call_id.decode() for call_id, _ in sorted(rows, key=lambda row: row[1], reverse=True)]


def batches(items: list[T]) -> Iterator[list[T]]:
    """Yield ``items`` in lists that one trip can carry."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def not_a_letter(call_id: str, record: CallRecord | None) -> CallNotFoundError:
    """Return the error for a call that is not a dead letter, or not any more."""
    reason = "it is unknown or expired"
    if record is not None:
        reason = "it was dropped" if record.status == "dead" else f"it is {record.outcome or record.status}"
    return CallNotFoundError(
        f"Call {call_id} is not a dead letter: {reason}.",
        suggestion="`goondan dead-letters list` shows them.",
    )
