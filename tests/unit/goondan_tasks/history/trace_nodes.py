"""Nodes of traces for the tests."""

from typing import Any

from goondan_tasks.contract.messages import iso_time
from goondan_tasks.history.trace import TraceNode

#: 2026-02-01T10:00:00Z in milliseconds
TEN = 1_769_940_000_000


def node(name: str, parent: str | None = None, *, at: float = 0, **fields: Any) -> TraceNode:
    """Make a call that was queued ``at`` seconds after ten, waited 0.1 s and ran 0.25 s."""
    known: dict[str, Any] = {
        "kind": "call",
        "agent": "coder",
        "instance": "issue-42",
        "tool": "bash__exec",
        "state": "ok",
        "worker": "coder-71@host",
        "attempt": 1,
        "queued_at": iso_time(TEN + at * 1000),
        "started_at": iso_time(TEN + at * 1000 + 100),
        "finished_at": iso_time(TEN + at * 1000 + 350),
        "waiting_seconds": 0.1,
        "running_seconds": 0.25,
        "correlation_id": "order-7",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "parent_id": parent,
    }
    return TraceNode(id=name, **{**known, **fields})
