"""Finds calls that were lost with their workers before a sweep does.

A worker is dead if its heartbeat is gone and it no longer renews its leases; a draining worker may have no
heartbeat. Only sweeps act on lost calls (DESIGN "Delivery" rule 4). This module reports them earlier, because
sweeps are rare where no worker runs and no producer waits.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker_config.connections import milliseconds_of, rows_of
from goondan_tasks.contract.table_rows import whole_number
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord

#: how many running calls of an agent are checked, the oldest first
LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class Loss:
    """A call whose worker is dead. Times are milliseconds, Redis time."""

    worker: str
    #: when the worker was last seen
    at: int
    now: int

    @property
    def seconds(self) -> float:
        """How long ago the worker was last seen."""
        return max(0, self.now - self.at) / 1000


def find_losses(ledger: Ledger, call_ids: Iterable[str]) -> dict[str, Loss]:
    """Return which of these calls are lost, in one trip to Redis, or four if a lease is about to end."""
    redis, keys, lease = ledger.redis, ledger.keys, round(ledger.settings.lease_seconds * 1000)
    ids = list(call_ids)
    if not ids:
        return {}
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for call_id in ids:
            pipe.zscore(keys.due, call_id)
        time, *ends = pipe.execute()
    now = int(milliseconds_of(time))
    # a live worker renews after a third of the lease
    ending = {one: int(end) for one, end in zip(ids, ends, strict=True) if end and end <= now + lease / 2}
    if not ending:
        return {}
    with redis.pipeline(transaction=False) as pipe:
        for call_id in ending:
            pipe.hmget(keys.call(call_id), "status", "worker", "claimedAt", "token", "spared", "renewedAt")
        rows = rows_of(pipe)
    alive = {worker.name for worker in AgentRegistry(redis, keys).workers()}
    found = (_loss(one, row, end - lease, now) for (one, end), row in zip(ending.items(), rows, strict=True))
    return {
        call_id: loss
        for call_id, loss in zip(ending, found, strict=True)
        if loss is not None and loss.worker not in alive
    }


def _loss(call_id: str, row: Sequence[Any] | None, renewed_at: int, now: int) -> Loss | None:
    if row is None:
        return None
    status, worker, claimed_at, token, spared, kept = row
    if status != b"running" or worker is None:
        return None
    if kept is not None and spared == token:  # a sweep has extended the lease
        renewed_at = whole_number(kept, f"renewedAt of call {call_id!r}")
    # the worker's leases may be shorter than ours
    claimed = whole_number(claimed_at, f"claimedAt of call {call_id!r}")
    return Loss(worker.decode(errors="replace"), max(renewed_at, claimed), now)


def with_losses(ledger: Ledger, records: Iterable[CallRecord]) -> list[CallRecord]:
    """Return the records, with :attr:`CallRecord.lost_at` set for lost calls."""
    found = list(records)
    running = [record.id for record in found if record.status == "running"]
    lost = find_losses(ledger, running)
    return [replace(one, lost_at=lost[one.id].at) if one.id in lost else one for one in found]


def losses_of_agents(ledger: Ledger, agents: Sequence[str]) -> Mapping[str, list[Loss]]:
    """Return the lost calls of each of these agents."""
    if not agents:
        return {}
    with ledger.redis.pipeline(transaction=False) as pipe:
        for agent in agents:
            pipe.zrange(ledger.keys.running(agent), 0, LOOKED_AT - 1)
        running = [[call_id.decode(errors="replace") for call_id in row or ()] for row in rows_of(pipe)]
    lost = find_losses(ledger, (one for ids in running for one in ids))
    return {
        agent: [lost[one] for one in ids if one in lost] for agent, ids in zip(agents, running, strict=True)
    }
