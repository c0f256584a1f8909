"""Searches the calls of agents by a filter, page by page.

No index is kept for what people look for. The calls of an agent are in one, those that run, wait or are
pending in others, and those that ended with an error in one of their own. A script looks through these
(``find_calls.lua``), a thousand calls at a time, so that other scripts need not wait for it.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from broker_config import serializer
from broker_config.connections import rows_of
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.ledger.call_filter import (
    CallFilter,
    folded,
    is_wanted,
    moments,
    scheduled_calls,
    selects_failures,
)
from goondan_tasks.ledger.record import CallRecord, CallRecords

#: how many calls one search looks at; its page says where to go on
SEARCHED = 20_000
#: how many calls, and bytes of them, one script looks at: it takes some milliseconds
_AT_ONCE, _BYTES_AT_ONCE = 1_000, 4_000_000
_RUNNING = frozenset({"running", "lost"})
#: ends a text that stands for itself in a glob, as a bracket does
_WILD = re.compile(r"[*?]")

Facts = Callable[[Sequence[CallRecord]], list[CallRecord]]


@dataclass(frozen=True, slots=True)
class CallPage:
    """A part of the calls that a filter selects, the latest first."""

    calls: tuple[CallRecord, ...]
    #: where the search goes on; ``None`` if nothing is left
    cursor: str | None
    #: how many calls were looked at for this page, and how many there are of these agents and of this time
    searched: int
    total: int


@dataclass(frozen=True, slots=True)
class _Place:
    """The call that was looked at last."""

    score: str = ""
    agent: str = ""
    call_id: str = ""

    @classmethod
    def of(cls, cursor: str | None) -> "_Place":
        """Read a cursor.

        Raises:
            ToolInputValidationError: it is none.
        """
        if cursor is None:
            return cls()
        score, _, rest = cursor.partition("~")
        call_id, _, agent = rest.partition("~")
        if not (re.fullmatch(r"[0-9.]{1,30}", score) and call_id and agent):
            raise ToolInputValidationError(
                "cursor: this list has no such cursor.",
                suggestion="Give the cursor of the page before, unchanged.",
            )
        return cls(score, agent, call_id)

    @property
    def cursor(self) -> str:
        """The place as text, which :meth:`of` reads."""
        return f"{self.score}~{self.call_id}~{self.agent}"


class CallSearch:
    """Searches one ledger. Methods may raise ``redis.exceptions.RedisError``.

    ``facts`` adds to records what states need. ``only_letters`` searches the dead letters.
    """

    def __init__(self, ledger: CallRecords, facts: Facts = list, *, only_letters: bool = False) -> None:
        self._ledger = ledger
        self._facts = facts
        self._only_letters = only_letters
        self._script = Script.read(files("goondan_tasks.ledger") / "scripts", "find_calls")

    def page(self, agents: Iterable[str], limit: int, cursor: str | None, wanted: CallFilter) -> CallPage:
        """Return at most ``limit`` of the calls that ``wanted`` selects, after looking at SEARCHED at most.

        They are in the order in which they were queued. If only calls that ended with an error can be
        selected, it is that of their ends; of those that run, that of their beginnings; of pending ones, that
        of their expiry; of scheduled ones, the soonest come first.

        Raises:
            ToolInputValidationError: ``cursor`` is not one of this list.
        """
        names, place = sorted(agents), _Place.of(cursor)
        earliest, latest = moments(self._ledger.redis, wanted)
        if wanted.get("status") == "scheduled":
            return self._scheduled(names, limit, wanted)
        index, has_ages = self._index_of(wanted)
        keys = [index(name) for name in names]
        span = (latest, earliest) if has_ages else ("+inf", "-inf")
        terms = _terms(wanted)
        found: list[CallRecord] = []
        searched, is_over = 0, not names
        while not is_over and len(found) < limit and searched < SEARCHED:
            passed = bisect_left(names, place.agent) if place.score else 0
            is_known = passed < len(names) and names[passed] == place.agent
            bounds = (_AT_ONCE, _BYTES_AT_ONCE, limit - len(found), *span)
            at = (place.score, passed, place.call_id if is_known else "")
            search: ScriptCall[list[Any]] = ScriptCall(
                self._script, keys, [self._ledger.keys.call(""), *bounds, *at, *terms]
            )
            seen, score, number, call_id, *ids = search.run(self._ledger.redis)
            searched, is_over = searched + seen, number == 0
            if not is_over:
                place = _Place(score.decode(), names[number - 1], call_id.decode(errors="replace"))
            known = [
                one
                for one in self._ledger.records([one.decode(errors="replace") for one in ids])
                if one is not None
            ]
            found += [
                record
                for record in self._facts(known)
                if is_wanted(record, wanted) and (has_ages or earliest <= record.queued_at <= latest)
            ]
        total = self._total(keys, *span)
        return CallPage(tuple(found), None if is_over else place.cursor, searched, max(searched, total))

    def _index_of(self, wanted: CallFilter) -> tuple[Callable[[str], str], bool]:
        """Return the shortest index that has all wanted calls, and whether its order is that of ages."""
        keys, status = self._ledger.keys, wanted.get("status")
        if self._only_letters:
            return keys.dead_letters, True
        if selects_failures(wanted):
            return keys.failures, True
        if status in _RUNNING:
            return keys.running, False
        if status in ("waiting", "pending"):
            return keys.waiting if status == "waiting" else keys.pending, False
        return keys.calls, True

    def _scheduled(self, names: Sequence[str], limit: int, wanted: CallFilter) -> CallPage:
        found = scheduled_calls(self._ledger, names, max(limit, _AT_ONCE), **wanted)
        total = self._total([self._ledger.keys.scheduled(name) for name in names], "+inf", "-inf")
        shown = [record for record in found if is_wanted(record, wanted)][:limit]
        return CallPage(tuple(shown), None, len(found), max(total, len(found)))

    def _total(self, keys: Iterable[str], latest: Any, earliest: Any) -> int:
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.zcount(key, earliest, latest)
            return sum(row or 0 for row in rows_of(pipe))


def _terms(wanted: CallFilter) -> list[Any]:
    """Return what ``find_calls.lua`` takes for what is wanted."""
    status, tool, instance, code, text, subject = (
        wanted.get(name) for name in ("status", "tool", "instance", "code", "text", "subject")
    )
    texts = [
        "" if instance is None else b'"instanceKey":' + serializer.encode(instance),
        "" if subject is None else serializer.encode(subject),
        "" if code is None else b'"code":' + serializer.encode(code),
        "" if not text else folded(serializer.encode(text).decode()[1:-1]),
    ]
    pieces = [] if tool is None else _WILD.split(str(tool).partition("[")[0])
    words = {"waiting": "queued", "lost": "running"}
    return [words.get(str(status), status or ""), *texts, *(serializer.encode(one)[1:-1] for one in pieces)]
