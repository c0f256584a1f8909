"""When calls ran and where, as their handlers report it, and which slots were idle meanwhile."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """One run of a handler; times in seconds of one monotonic clock."""

    #: when the call was certainly in Redis: its submission had returned
    submitted: float
    begun: float
    ended: float
    #: the worker's process id
    worker: int


def longest_idle_wait(runs: Sequence[HandlerRun], workers: Collection[int], slots: int) -> float:
    """Return the longest time for which a call waited while another worker always ran fewer than ``slots``.

    The other worker is any except the one that ran the call in the end. With the concurrency as ``slots`` it
    had a slot idle throughout; with 1 it ran nothing at all. Only what handlers report is used, so the time
    that a worker needs around a handler counts as idle.
    """
    busy = {
        worker: spans_of_at_least(slots, [(run.begun, run.ended) for run in runs if run.worker == worker])
        for worker in workers
    }
    waits = (
        longest_gap(run.submitted, run.begun, busy[worker])
        for run in runs
        for worker in workers
        if worker != run.worker
    )
    return max(waits, default=0.0)


def spans_of_at_least(count: int, spans: Spans) -> list[tuple[float, float]]:
    """Return when at least ``count`` of the spans overlapped, in order."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    found, level, since = [], 0, 0.0
    for moment, change in changes:
        if change == 1 and level == count - 1:
            since = moment
        elif change == -1 and level == count:
            found.append((since, moment))
        level += change
    return found


def longest_gap(start: float, end: float, busy: Spans) -> float:
    """Return the longest part of ``start`` to ``end`` that none of the ordered ``busy`` spans touches."""
    longest, free_since = 0.0, start
    for begun, ended in busy:
        if begun >= end:
            break
        longest = max(longest, begun - free_since)
        free_since = max(free_since, ended)
    return max(longest, end - free_since)
