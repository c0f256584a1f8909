"""Dead letters: calls that killed a worker in every run, and messages without a call.

Source: DESIGN "Delivery" rules 4 and 9.

``finish.lua`` adds a call to its agent's index. It leaves the index when it is dropped or its record expires.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, Unpack

from broker_config.connections import rows_of
from broker_config.scripts import run_script_calls
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.ledger.call_filter import CallFilter, is_wanted, moments
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord

#: how many records one round trip reads
BATCH = 200

T = TypeVar("T")


class DeadLetters:
    """The dead letters of one ledger. Methods may raise ``redis.exceptions.RedisError``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._redis = ledger.redis
        self._keys = ledger.keys

    def find(
        self,
        agents: Iterable[str],
        between: tuple[float, float] | None = None,
        **wanted: Unpack[CallFilter],
    ) -> Iterator[CallRecord]:
        """Yield the dead letters of ``agents``, the latest first; unreadable ones are left out.

        Those of the moments ``between`` (ms, Redis time), or else of the ages that are wanted.
        """
        ids = self._ids(agents, *(between or moments(self._redis, wanted)))
        for batch in batches(ids):
            for record in self._ledger.records(batch):
                if record is not None and is_wanted(record, wanted):
                    yield record

    def has(self, record: CallRecord) -> bool:
        """Return whether the call is a dead letter that was not dropped."""
        return self._redis.zscore(self._keys.dead_letters(record.call.agent_name), record.id) is not None

    def remove(self, call_ids: Iterable[str], agents: Iterable[str]) -> list[str]:
        """Remove calls from the indexes of ``agents``; return those that were there.

        They are looked up first: if the connection is lost, a repeated ZREM would not tell what the first
        removed.
        """
        ids = list(call_ids)
        indexes = [self._keys.dead_letters(agent) for agent in agents] if ids else []
        with self._redis.pipeline(transaction=False) as pipe:
            for index in indexes:
                pipe.zmscore(index, ids)
            scores = [row or [None] * len(ids) for row in rows_of(pipe)]
            for index in indexes:
                pipe.zrem(index, *ids)
            rows_of(pipe)
        columns = zip(*scores, strict=True)
        return [one for one, row in zip(ids, columns, strict=False) if any(at is not None for at in row)]

    def note_replayed(self, records: Sequence[CallRecord], by: Sequence[str]) -> None:
        """Record which call replays each of ``records`` (``replayed.lua``)."""
        replayed = self._ledger.replayed
        script_calls = [replayed(old.id, new, old.replays + 1) for old, new in zip(records, by, strict=True)]
        run_script_calls(self._redis, script_calls)

    def _ids(self, agents: Iterable[str], earliest: float, latest: float) -> list[str]:
        with self._redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrangebyscore(self._keys.dead_letters(agent), earliest, latest, withscores=True)
            rows = [row for answer in rows_of(pipe) for row in answer or ()]
        return [
            call_id.decode(errors="replace")
            for call_id, _ in sorted(rows, key=lambda row: row[1], reverse=True)
        ]


def batches(items: list[T]) -> Iterator[list[T]]:
    """Split ``items`` into lists for one round trip each."""
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def not_a_letter(call_id: str, record: CallRecord | None) -> CallNotFoundError:
    """Return the error for a call that is not, or no longer, a dead letter."""
    reason = "it is unknown or expired"
    if record is not None:
        reason = "it was dropped" if record.status == "dead" else f"it is {record.outcome or record.status}"
    return CallNotFoundError(
        f"Call {call_id} is not a dead letter: {reason}.",
        suggestion="`goondan dead-letters list` shows them.",
    )
