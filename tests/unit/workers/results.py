"""The end of runs in tests: a ResultWriter that tells only the test."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from goondan_tasks.fleet.call_counts import CallCounts
from goondan_tasks.ledger.ledger import Ledger
from workers.delivery.result_writer import ResultWriter
from workers.job import Job


def results_of(
    ledger: Ledger,
    writer: Any,
    tell: Callable[[Sequence[Job]], object],
    cancelled: Callable[[Job], object],
) -> ResultWriter:
    """Make what ends runs; ``tell`` gets those that have ended, ``cancelled`` those that are cancelled."""
    nobody: Any = SimpleNamespace(
        follow=lambda look_in: None,
        is_waited_for=lambda call: False,
        leave_damaged=lambda claim: None,
        write=lambda calls: None,
    )
    counts = CallCounts(lambda agent, tool: True)
    results = ResultWriter(
        ledger, writer, nobody, nobody, nobody, nobody, nobody, nobody, nobody, counts, nobody
    )
    results.tell_of_short(tell)
    overridden: Any = results
    overridden.end_cancelled = cancelled
    return results
