"""The filter by which operators select calls: to list, cancel, replay or drop them."""

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TypedDict, cast

from redis.exceptions import ResponseError

from broker_config.connections import rows_of
from broker_config.refusals import is_script_fault
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.ledger.record import CallRecord, CallRecords

#: how many recent calls a filter searches that only shows calls
SEARCHED = 1000

#: the statuses, states and outcomes of calls
STATUSES = ("scheduled", "queued", "waiting", "running", "lost", "pending", "done", "dead", "ok", "error")

_OPEN_STATUSES = frozenset({"scheduled", "queued", "running", "pending"})
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
    #: the lowest age in seconds: since the call was queued; of a dead letter, since it died
    older_than: float | None
    #: the highest age in seconds
    newer_than: float | None


def is_wanted(record: CallRecord, wanted: CallFilter) -> bool:
    """Return whether a filter selects a call by everything but its age, which the indexes of calls decide."""
    tool, instance, status = (wanted.get(name) for name in ("tool", "instance", "status"))
    return (
        (tool is None or fnmatchcase(record.call.tool_name, str(tool)))
        and (instance is None or instance == record.call.instance_key)
        and (status is None or status in {record.status, record.outcome, record.state})
    )


def is_narrowed(wanted: CallFilter) -> bool:
    """Return whether a filter selects by more than the age."""
    return any(wanted.get(name) is not None for name in ("tool", "instance", "status"))


def open_calls(ledger: CallRecords, agent: str | None, wanted: CallFilter) -> Iterator[CallRecord]:
    """Yield the selected calls that have not ended and are not cancelled, of one agent or of all.

    Those whose deadlines are the latest come first: of calls that are alike, the newest.
    """
    earliest, latest = ledger.moments(wanted.get("older_than"), wanted.get("newer_than"))
    with naming(ledger.keys.due):
        due = cast("list[bytes]", ledger.redis.zrevrange(ledger.keys.due, 0, -1))
    ids = [one.decode() for one in due]
    for start in range(0, len(ids), _BATCH):
        for record in ledger.records(ids[start : start + _BATCH]):
            if (
                record is not None
                and record.status in _OPEN_STATUSES
                and not record.is_cancelled
                and agent in {None, record.call.agent_name}
                and earliest <= record.queued_at <= latest
                and is_wanted(record, wanted)
            ):
                yield record


def scheduled_calls(
    ledger: CallRecords,
    agents: Iterable[str],
    limit: int,
    older_than: float | None = None,
    newer_than: float | None = None,
) -> list[CallRecord]:
    """Return the calls of ``agents`` whose time is to come, the soonest first; ages as in ``recent``."""
    earliest, latest = ledger.moments(older_than, newer_than)
    with ledger.redis.pipeline(transaction=False) as pipe:
        for agent in agents:
            pipe.zrange(ledger.keys.scheduled(agent), 0, limit - 1)
        ids = [call_id.decode() for row in rows_of(pipe) for call_id in row or ()]
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
