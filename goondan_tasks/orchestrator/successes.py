"""Whether an agent's workers have finished a run lately."""

from goondan_tasks.ledger.ledger import Ledger

#: how many of the agent's latest calls are looked at
LATEST = 50


def has_finished_run(ledger: Ledger, agent: str, since: int) -> bool:
    """Say whether a worker of the agent has finished a run since ``since`` (ms, Redis time).

    A result that a sweep or an orchestrator has made tells nothing about workers: it has no start.
    """
    ended = (
        record
        for record in ledger.recent([agent], LATEST)
        if record.outcome is not None and (record.finished_at or 0) >= since
    )
    return any(_was_run(ledger, record.id) for record in ended)


def _was_run(ledger: Ledger, call_id: str) -> bool:
    try:
        result = ledger.result(call_id)
    except ValueError:  # a newer version's: that worker is well
        return True
    return result is not None and result.meta.started_at is not None
