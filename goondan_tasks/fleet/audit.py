"""The audit: who did what, when, and by which door. A stream in Redis that keeps the latest entries.

An act is a method that the table of its class names (:func:`recording`), so no door can forget to record
one: a door only says who acts (:func:`acting_as`). The entry is written after the act, because only then is
it known what was done. If it cannot be written, the act stands, and a warning is logged.
"""

import functools
import inspect
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from redis import Redis
from redis.exceptions import RedisError

from broker_config import serializer
from broker_config.connections import redis_time, reporting_outages
from broker_config.keys import Keys
from goondan_tasks.contract.errors import GoondanError, ToolInputValidationError
from goondan_tasks.contract.failure import LONGEST_NAME
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY, Versioned, iso_time
from goondan_tasks.contract.table_rows import only_advice, read_row

logger = logging.getLogger(__name__)

#: how many entries are kept: a new one replaces the oldest
MOST_ENTRIES = 10_000
#: how long they are kept after the last of them
TTL_SECONDS = 366 * 86_400
#: how many entries one command reads
_BATCH = 1_000
_FIELD = b"entry"
_ID = re.compile(r"\d{1,15}-\d{1,15}")

Kind = TypeVar("Kind", bound=type)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and by which door: ``cli``, ``library``, or that of the HTTP application."""

    name: str = ""
    door: str = "library"
    #: another name of the same, such as that of the token of a user
    alias: str = ""

    def is_called(self, name: str) -> bool:
        """Return whether a name means the actor; no name means nobody else."""
        return name in {"", self.name, self.alias}


_NOBODY = Actor()
_actor: ContextVar[Actor] = ContextVar("goondan_actor", default=_NOBODY)
#: whether an act is being done: those that it consists of are not recorded again
_is_within: ContextVar[bool] = ContextVar("goondan_within_act", default=False)


@contextmanager
def acting_as(name: str, door: str = "library", alias: str = "") -> Iterator[None]:
    """Name who acts within a ``with`` block, in its threads and tasks, too: the audit says so."""
    token = _actor.set(Actor(name, door, alias))
    try:
        yield
    finally:
        _actor.reset(token)


class Target(NamedTuple):
    """What an act is done to."""

    kind: str
    name: str = ""
    agent: str | None = None


class _Act(Versioned):
    """An act, as it stands in the stream."""

    #: such as ``cancel`` or ``schedule.pause``
    act: str
    #: the person, or the token: ``""`` if nobody is named
    by: str = ""
    #: the person in whose name it was done, if that is another
    in_name_of: str | None = None
    door: str
    #: ``call``, ``calls``, ``deadLetters``, ``agent``, ``tool``, ``worker``, ``schedule``, ``instance``, …
    kind: str
    #: the id or name of the object; ``""`` for all, or for those of an agent
    target: str = ""
    agent: str | None = None
    #: of an act on many: how many were concerned
    count: int | None = None
    #: ``ok``, or the code or name of what ended an act on many: a part of it may be done
    outcome: str = "ok"


class AuditEntry(_Act):
    """An act that was done: who did it, when, by which door, to what."""

    #: its place in the audit, a cursor
    id: str
    #: ISO 8601, by the clock of Redis
    at: str


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries are wanted: those that fit all that is given."""

    #: the person or token
    by: str | None = None
    #: the id or name of the object, or an agent
    target: str | None = None
    act: str | None = None
    door: str | None = None
    #: at most so many seconds old
    newer_than: float | None = None

    def may_fit(self, row: bytes) -> bool:
        """Return whether an entry, as it is stored, is wanted, or damaged; its age is not looked at."""
        try:
            entry = serializer.decode(row)
        except ValueError:
            return True
        return not isinstance(entry, dict) or all(
            text is None or text in map(entry.get, fields)
            for text, fields in (
                (self.by, ("by", "inNameOf")),
                (self.target, ("target", "agent")),
                (self.act, ("act",)),
                (self.door, ("door",)),
            )
        )


#: all entries
ALL = AuditFilter()


class AuditLog:
    """The audit of one namespace. Reading raises ``redis.exceptions.RedisError``."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._key = keys.audit

    def add(
        self, act: str, target: Target, *, by: str = "", count: int | None = None, outcome: str = "ok"
    ) -> None:
        """Record an act of the current actor, or of the one that ``by`` names if that is nobody."""
        actor = _actor.get()
        is_other = bool(actor.name) and not actor.is_called(by)
        entry = _Act(
            act=act,
            by=(actor.name or by)[:LONGEST_NAME],
            in_name_of=by[:LONGEST_NAME] if is_other else None,
            door=actor.door,
            kind=target.kind,
            target=target.name[:LONGEST_INSTANCE_KEY],
            agent=target.agent,
            count=count,
            outcome=outcome,
        )
        try:
            with reporting_outages(), self._redis.pipeline(transaction=False) as pipe:
                fields = {_FIELD: serializer.encode(entry.to_wire(), repairs=True)}
                pipe.xadd(self._key, cast("dict[Any, Any]", fields), maxlen=MOST_ENTRIES, approximate=False)
                pipe.expire(self._key, TTL_SECONDS)
                pipe.execute()
        except (RedisError, GoondanError) as error:
            what = f"{act} of {target.kind} {target.name}".rstrip()
            logger.warning("%s was done, but is not in the audit: %s", what, error)

    def find(self, limit: int, before: str | None = None, wanted: AuditFilter = ALL) -> list[AuditEntry]:
        """Return the latest entries that are wanted, before the one with the id ``before``.

        Raises:
            ToolInputValidationError: ``before`` is no id of an entry.
        """
        if before is not None and _ID.fullmatch(before) is None:
            raise ToolInputValidationError(
                "before: this is not the id of an entry.", suggestion="Use the id of an entry, unchanged."
            )
        first = "-"
        if wanted.newer_than is not None:
            first = str(max(0, int(redis_time(self._redis) - 1_000 * min(wanted.newer_than, 1e11))))
        found: list[AuditEntry] = []
        count = limit if wanted == ALL else _BATCH
        end = "+" if before is None else f"({before}"
        with only_advice(self._key):
            while len(found) < limit:
                rows = cast(
                    "list[tuple[bytes, dict[bytes, bytes]]]",
                    self._redis.xrevrange(self._key, end, first, count=count),
                )
                stored = ((key.decode(), row[_FIELD]) for key, row in rows if _FIELD in row)
                entries = (_entry(key, row) for key, row in stored if wanted.may_fit(row))
                fitting = (one for one in entries if one is not None)
                found += itertools.islice(fitting, limit - len(found))
                if len(rows) < count:
                    break
                end = f"({rows[-1][0].decode()}"
        return found


def _entry(entry_id: str, row: bytes) -> AuditEntry | None:
    act = read_row(_Act, row, f"the entry {entry_id} of the audit")
    at = iso_time(int(entry_id.partition("-")[0]))
    return None if act is None else AuditEntry(**dict(act), id=entry_id, at=at)


@dataclass(frozen=True, slots=True)
class Recorded:
    """How a method is recorded."""

    #: returns what it is done to, by the arguments of the method; ``None``: it is not recorded
    of: Callable[[Mapping[str, Any]], Target | None]
    #: whether programs do it all the time: it is recorded only if a person is named
    is_routine: bool = False
    #: whether the method returns whether it has changed anything
    says_whether: bool = False
    #: whether it is done to many: the method returns them, or how many they are
    is_bulk: bool = False
    #: returns the name of the act, by the arguments of the method, if that is not always the method's
    named: Callable[[Mapping[str, Any]], str] | None = None


class Audited(Protocol):
    """What has acts."""

    @property
    def _audit(self) -> AuditLog: ...


def recording(acts: Mapping[str, Recorded], prefix: str = "") -> Callable[[Kind], Kind]:
    """Record the methods of a class that a table names, once they have returned (a class decorator).

    One of many that has found none has no entry. The name of an act is that of its method after ``prefix``.
    """

    def decorate(kind: Kind) -> Kind:
        for name, recorded in acts.items():
            setattr(kind, name, _recording(getattr(kind, name), f"{prefix}{name}", recorded))
        return kind

    return decorate


def _recording(method: Callable[..., Any], act: str, recorded: Recorded) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def run(self: Audited, /, *args: Any, **fields: Any) -> Any:
        if _is_within.get():
            return method(self, *args, **fields)

        def note(answer: Any, outcome: str = "ok") -> None:
            given = signature.bind(self, *args, **fields).arguments
            _note(self._audit, act, recorded, given, answer, outcome)

        token = _is_within.set(True)
        try:
            answer = method(self, *args, **fields)
        except ToolInputValidationError:  # nothing is done
            raise
        except (GoondanError, KeyboardInterrupt) as error:  # a part of it may be done
            if recorded.is_bulk:
                note(None, error.code if isinstance(error, GoondanError) else type(error).__name__)
            raise
        finally:
            _is_within.reset(token)
        note(answer)
        return answer

    return run


def _note(
    log: AuditLog, act: str, recorded: Recorded, given: Mapping[str, Any], answer: Any, outcome: str
) -> None:
    by = str(given.get("by", ""))
    is_anonymous = not (_actor.get().name or by)
    is_nothing = recorded.says_whether and not answer
    if is_nothing or given.get("dry_run") or (recorded.is_routine and is_anonymous):
        return
    if (target := recorded.of(given)) is None:
        return
    count = None
    if recorded.is_bulk and outcome == "ok":
        count = len(answer) if isinstance(answer, Sized) else int(answer)
        if not count:
            return
    name = act if recorded.named is None else recorded.named(given)
    log.add(name, target, by=by, count=count, outcome=outcome)
