"""The attempts of a call, as ``goondan show`` lists them."""

from goondan_tasks.contract.errors import AgentOutcomeUnknownError, ToolOutcomeUnknownError, ToolPoisonedError
from goondan_tasks.contract.messages import ToolCallResult, WireModel, epoch_milliseconds, iso_time
from goondan_tasks.ledger.former_runs import FormerRun
from goondan_tasks.ledger.record import CallRecord


class Attempt(WireModel):
    """One run of a call. ``ended`` is absent during the run; other absent facts were not kept."""

    number: int
    worker: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    ended: str | None = None
    #: the last lines that it has logged, without secrets, if it has failed; a run whose worker died has none
    log: str | None = None


def attempts_of(record: CallRecord, result: ToolCallResult | None) -> tuple[Attempt, ...]:
    """Return the runs; older versions kept only the last one, and the start of the first retried one."""
    if not record.attempt:
        return ()
    first, former = time_of(record.begun_at), {run.attempt: run for run in record.former}
    unknown = Attempt(number=1, started_at=first, ended="not kept")
    earlier = [
        _former_attempt(former[number])
        if number in former
        else unknown.model_copy(update={"number": number, "started_at": first if number == 1 else None})
        for number in range(1, record.attempt)
    ]
    runs = (*earlier, _last_attempt(record, result))
    return tuple(run.model_copy(update={"log": record.lines.get(run.number)}) for run in runs)


#: how a run has ended whose worker died after its handler had started
DIED = "its worker died"

#: the codes of results after the death of a worker
_DEATHS = {ToolOutcomeUnknownError.code, ToolPoisonedError.code, AgentOutcomeUnknownError.code}

_ENDINGS = {
    "died": DIED,
    "unstarted": "its worker died before it had started",
    "overran": "ran beyond its limit, and its worker could not end it",
    "released": "given back by its worker",
}


def _former_attempt(run: FormerRun) -> Attempt:
    return Attempt(
        number=run.attempt,
        worker=run.worker,
        started_at=iso_time(run.claimed_at),
        ended_at=iso_time(run.ended_at),
        ended=_ENDINGS.get(run.ending, run.ending),
    )


def _last_attempt(record: CallRecord, result: ToolCallResult | None) -> Attempt:
    last = record.former[-1] if record.former else None
    # a claim of the same number may have followed a run that did not start
    is_last = last is not None and last.attempt == record.attempt and last.claimed_at == record.claimed_at
    has_no_run = record.status in {"queued", "scheduled"}
    is_unfinished = has_no_run or (result is not None and result.meta.started_at is None)
    if last is not None and is_last and (is_unfinished or last.has_died):
        return _former_attempt(last)
    ended_at: float | None = end_of_run(record, result)
    ended = _ending(result)
    if record.requeued_at is not None:  # its worker and start are not kept
        ended = "given back by its worker, or lost with it"
        return Attempt(number=record.attempt, ended_at=time_of(record.requeued_at), ended=ended)
    if record.lost_at is not None:
        ended_at, ended = record.lost_at, DIED
    elif record.status == "pending":
        ended_at, ended = record.suspended_at, "its output comes later"
    return Attempt(
        number=record.attempt,
        worker=record.worker,
        started_at=time_of(record.claimed_at),
        ended_at=time_of(ended_at),
        ended=ended,
    )


def end_of_run(record: CallRecord, result: ToolCallResult | None) -> float | None:
    """Return when the last run of an ended call ended, in ms: an outage delays only the record of its end."""
    stored_at = record.finished_at
    if stored_at is None or result is None or result.meta.started_at is None or not result.meta.finished_at:
        return stored_at
    return min(stored_at, epoch_milliseconds(result.meta.finished_at))


def _ending(result: ToolCallResult | None) -> str | None:
    if result is None or result.error is None:
        return None if result is None else "ok"
    is_death = result.error.code in _DEATHS
    return DIED if is_death else result.error.code


def time_of(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else iso_time(milliseconds)
