"""The filter by which operators select calls: to list, cancel, replay or drop them."""

import math
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, TypedDict, Unpack, cast, get_args

from redis import Redis
from redis.exceptions import ResponseError

from broker_config.connections import redis_time, rows_of
from broker_config.refusals import is_script_fault
from goondan_tasks.contract.fingerprints import FailureKind
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.contract.wording import member
from goondan_tasks.ledger.record import CallRecord, CallRecords

#: the statuses, states and outcomes of calls: waiting calls are queued, lost ones running, ok and error done
CallStatus = Literal[
    "scheduled", "queued", "waiting", "running", "lost", "pending", "done", "dead", "ok", "error"
]
STATUSES: tuple[CallStatus, ...] = get_args(CallStatus)
#: those of calls that have not ended
OpenStatus = Literal["scheduled", "queued", "waiting", "running", "pending"]

#: how many records one round trip reads
_BATCH = 500
#: how many entries of an index are looked at in one round trip
_SCANNED = 5_000
#: what has a meaning in a pattern of Redis
_GLOB = re.compile(r"[*?\[\]\\^-]")


class CallFilter(TypedDict, total=False):
    """Selects calls; a field that is missing or ``None`` selects all."""

    #: a glob of full tool names
    tool: str | None
    instance: str | None
    #: a status, a state or an outcome: a call that waits for a limit is ``queued`` as well as ``waiting``
    status: str | None
    #: the code of its error
    code: str | None
    #: text in the message of its error; upper and lower case of ASCII letters are the same
    text: str | None
    #: a user or tenant: one of the values of ``auth.subjects``
    subject: str | None
    #: the kind of its failure (:mod:`goondan_tasks.contract.fingerprints`)
    fingerprint: str | None
    #: the lowest age in seconds: since the call was queued; where only failures or dead letters are listed,
    #: since it ended
    older_than: float | None
    #: the highest age in seconds
    newer_than: float | None


def moments(redis: Redis, wanted: CallFilter) -> tuple[float, float]:
    """Return the earliest and the latest moment (ms, Redis time) of what has the ages that are wanted."""
    older_than, newer_than = wanted.get("older_than"), wanted.get("newer_than")
    now = 0 if older_than is newer_than is None else redis_time(redis)
    earliest = -math.inf if newer_than is None else now - newer_than * 1000
    return earliest, math.inf if older_than is None else now - older_than * 1000


def is_wanted(record: CallRecord, wanted: CallFilter) -> bool:
    """Return whether a filter selects a call by everything but its age, which the indexes of calls decide."""
    tool, instance, status, subject = (wanted.get(name) for name in ("tool", "instance", "status", "subject"))
    return (
        (tool is None or fnmatchcase(record.call.tool_name, str(tool)))
        and (instance is None or instance == record.call.instance_key)
        and (status is None or status in {record.status, record.outcome, record.state})
        and (subject is None or subject in subjects_of(record.call.auth))
        and _has_failed_so(record, wanted)
    )


def subjects_of(auth: Any) -> list[Any]:
    """Return the users and tenants in the ``auth`` of a call."""
    subjects = member(auth, "subjects")
    return list(subjects.values()) if isinstance(subjects, dict) else []


def selects_failures(wanted: CallFilter) -> bool:
    """Return whether a filter can only select calls that ended with an error."""
    by_error = any(wanted.get(name) is not None for name in ("code", "text", "fingerprint"))
    return by_error or wanted.get("status") in ("error", "dead")


def _has_failed_so(record: CallRecord, wanted: CallFilter) -> bool:
    code, text, fingerprint = (wanted.get(name) for name in ("code", "text", "fingerprint"))
    if code is text is fingerprint is None:
        return True
    error = record.error
    return (
        error is not None
        and code in {None, error.code}
        and (text is None or folded(str(text)) in folded(error.message))
        and fingerprint in {None, FailureKind.of(record.call.tool_name, error).fingerprint}
    )


def folded(text: str) -> bytes:
    """Return a text with the ASCII letters in lower case, as scripts compare it."""
    return text.encode("utf-8", "replace").lower()


def open_calls(
    ledger: CallRecords, agent: str | None, wanted: CallFilter, between: tuple[float, float] | None = None
) -> Iterator[CallRecord]:
    """Yield the selected calls that have not ended and are not cancelled, of one agent or of all.

    Those whose deadlines are the latest come first: of calls that are alike, the newest. They were queued in
    the moments ``between`` (ms, Redis time), or else have the ages that are wanted.
    """
    earliest, latest = between or moments(ledger.redis, wanted)
    with naming(ledger.keys.due):
        due = cast("list[bytes]", ledger.redis.zrevrange(ledger.keys.due, 0, -1))
    ids = [one.decode(errors="replace") for one in due]
    for start in range(0, len(ids), _BATCH):
        for record in ledger.records(ids[start : start + _BATCH]):
            if (
                record is not None
                and not record.has_ended
                and not record.is_cancelled
                and agent in {None, record.call.agent_name}
                and earliest <= record.queued_at <= latest
                and is_wanted(record, wanted)
            ):
                yield record


def scheduled_calls(
    ledger: CallRecords, agents: Iterable[str], limit: int, **ages: Unpack[CallFilter]
) -> list[CallRecord]:
    """Return the calls of ``agents`` whose time is to come, the soonest first; ages since the submission."""
    earliest, latest = moments(ledger.redis, ages)
    with ledger.redis.pipeline(transaction=False) as pipe:
        for agent in agents:
            pipe.zrange(ledger.keys.scheduled(agent), 0, limit - 1)
        ids = [call_id.decode(errors="replace") for row in rows_of(pipe) for call_id in row or ()]
    found = [
        record
        for record in ledger.records(ids)
        if record is not None and record.status == "scheduled" and earliest <= record.queued_at <= latest
    ]
    return sorted(found, key=lambda record: record.not_before or 0)[:limit]


def ids_beginning_with(ledger: CallRecords, text: str, agents: Iterable[str]) -> list[str]:
    """Return the ids of all kept calls of ``agents`` that begin with ``text``."""
    found: dict[bytes, None] = {}
    pattern = _GLOB.sub(r"\\\g<0>", text) + "*"
    for agent in agents:
        rows = ledger.redis.zscan_iter(ledger.keys.calls(agent), match=pattern, count=_SCANNED)
        try:
            found.update((call_id, None) for call_id, _ in rows)
        except ResponseError as error:
            if not is_script_fault(error):
                raise
    return [call_id.decode(errors="replace") for call_id in found]
