"""Failures by their kinds: what has failed, how often, and since when."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

from broker_config import serializer
from broker_config.connections import rows_of
from goondan_tasks.contract.fingerprints import FailureKind
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.wording import member
from goondan_tasks.ledger.call_filter import CallFilter, moments
from goondan_tasks.ledger.record import CallRecords

#: how many failures are read, the latest ones
LOOKED_AT = 2_000
#: how much of a message is kept
MESSAGE_CHARACTERS = 500
#: how many one round trip reads
_AT_ONCE = 500


class FailureGroup(WireModel):
    """Failures of one kind: one tool, one code, messages that differ in numbers, ids and quoted texts."""

    #: names the kind; a filter by it selects them
    fingerprint: str
    tool: str
    code: str
    #: the first line of the message, without what differs
    message: str
    #: sorted
    agents: tuple[str, ...]
    count: int
    #: how many of them were replayed
    replayed: int
    first_at: str
    last_at: str
    #: the latest one, and the beginning of its message
    last_id: str
    last_message: str


class Failures(WireModel):
    """Failures by their kinds, the most frequent first, of equal ones the latest."""

    groups: tuple[FailureGroup, ...]
    #: how many failures the groups hold, the latest ones
    counted: int
    #: how many there are
    total: int


@dataclass(slots=True)
class _Group:
    kind: FailureKind
    agents: set[str] = field(default_factory=set)
    replayed: int = 0
    #: when each has ended (ms), and its id
    ends: list[tuple[float, str]] = field(default_factory=list)
    #: the latest one, which comes first
    message: str = ""

    def view(self) -> FailureGroup:
        first, last = min(self.ends), max(self.ends)
        return FailureGroup(
            fingerprint=self.kind.fingerprint,
            tool=self.kind.tool,
            code=self.kind.code,
            message=self.kind.message,
            agents=tuple(sorted(self.agents)),
            count=len(self.ends),
            replayed=self.replayed,
            first_at=iso_time(first[0]),
            last_at=iso_time(last[0]),
            last_id=last[1],
            last_message=self.message,
        )


def read_failures(
    records: CallRecords, agents: Iterable[str], *, only_dead: bool, **ages: Unpack[CallFilter]
) -> Failures:
    """Read the latest failures of ``agents``, or their dead letters only; ages count from their ends.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    redis, names = records.redis, list(agents)
    earliest, latest = moments(records.redis, ages)
    index = records.keys.dead_letters if only_dead else records.keys.failures
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcount(index(name), earliest, latest)
            pipe.zrevrangebyscore(index(name), latest, earliest, start=0, num=LOOKED_AT, withscores=True)
        rows = rows_of(pipe)
    total = sum(count or 0 for count in rows[::2])
    ends = [
        (end, call_id.decode(errors="replace"), name)
        for name, row in zip(names, rows[1::2], strict=True)
        for call_id, end in row or ()
    ]
    ends.sort(reverse=True)
    groups = _grouped(records, ends[:LOOKED_AT])
    counted = sum(group.count for group in groups)
    # those that have expired since are in no group
    return Failures(groups=tuple(groups), counted=counted, total=total if len(ends) > LOOKED_AT else counted)


def _grouped(records: CallRecords, ends: Sequence[tuple[float, str, str]]) -> list[FailureGroup]:
    found: dict[FailureKind, _Group] = {}
    for start in range(0, len(ends), _AT_ONCE):
        batch = ends[start : start + _AT_ONCE]
        with records.redis.pipeline(transaction=False) as pipe:
            for _, call_id, _ in batch:
                pipe.hmget(records.keys.call(call_id), "result", "replayedBy")
            rows = rows_of(pipe)
        for (end, call_id, agent), row in zip(batch, rows, strict=True):
            result, replayed_by = row or (None, None)
            if (failure := _failure_of(result)) is None:
                continue
            kind, message = failure
            group = found.setdefault(kind, _Group(kind, message=message))
            group.agents.add(agent)
            group.ends.append((end, call_id))
            group.replayed += replayed_by is not None
    views = (one.view() for one in found.values())
    return sorted(views, key=lambda one: (one.count, one.last_at, one.fingerprint), reverse=True)


def _failure_of(result: Any) -> tuple[FailureKind, str] | None:
    """Return the kind of a failure and the beginning of its message; ``None`` without a readable result."""
    try:
        wire = serializer.decode(result or b"")
    except serializer.NotJsonError:
        return None
    tool, error = str(member(wire, "toolName")), member(wire, "error")
    code, message = (str(member(error, name) or "") for name in ("code", "message"))
    return FailureKind.of_text(tool, code, message), message[:MESSAGE_CHARACTERS]
