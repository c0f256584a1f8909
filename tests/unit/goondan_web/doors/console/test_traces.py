"""The page of a trace: what its end waited for, and which rows are folded."""

from typing import Any

from goondan_tasks.contract.messages import iso_time
from goondan_tasks.history.trace import Trace, TraceNode
from goondan_web.doors.console.traces import _rows, _visible, critical_path

T0 = 1_700_000_000_000


def node(name: str, depth: int, queued: int, waited: int, ran: int | None, **fields: Any) -> TraceNode:
    """Return a call; times are ms after the beginning of the trace."""
    given: dict[str, Any] = {"kind": "call", "tool": "notes__find", "state": "ok", **fields}
    return TraceNode(
        id=name,
        agent="coder",
        instance="k",
        queued_at=iso_time(T0 + queued),
        waiting_seconds=waited / 1_000,
        running_seconds=None if ran is None else ran / 1_000,
        depth=depth,
        correlation_id="c",
        trace_id="t",
        span_id="s",
        **given,
    )


def trace(*nodes: TraceNode) -> Trace:
    return Trace(correlation_id="c", nodes=nodes)


TURN = trace(
    node("turn", 0, 0, 10, 990, kind="request", tool="goondan__delegate"),
    node("model-1", 1, 20, 0, 100, tool="goondan__model-large"),
    node("quick", 1, 130, 0, 50),
    node("slow", 1, 130, 100, 500),
    node("inner", 2, 300, 10, 300),
    node("model-2", 1, 740, 0, 200, tool="goondan__model-large"),
    node("later", 0, 100, 0, 10, kind="event", tool="goondan__event"),
)


def test_critical_path_holds_calls_delaying_trace_end() -> None:
    assert critical_path(TURN) == {"turn", "model-1", "slow", "inner", "model-2"}


def test_trace_without_calls_has_no_critical_path() -> None:
    assert critical_path(trace()) == set()


def test_folded_call_hides_calls_it_caused() -> None:
    def names(*folded: str) -> list[str]:
        return [one.id for one in _visible(TURN.nodes, set(folded))]

    assert names() == [one.id for one in TURN.nodes]
    assert names("slow") == ["turn", "model-1", "quick", "slow", "model-2", "later"]
    assert names("turn", "slow") == ["turn", "later"]


def test_kinds_of_waits_and_runs_are_distinguished() -> None:
    shown = trace(
        node("a", 0, 0, 10, None, state="waiting", waiting_for="notes.find"),
        node("b", 0, 0, 10, None, state="pending", awaits="approval"),
        node("c", 0, 0, 10, 10, approved_by="ann"),
        node("d", 0, 0, 10, 10, tool="goondan__model-large"),
        node("e", 0, 0, 10, 10, kind="request"),
    )
    rows = _rows(shown, shown.nodes, [])
    assert [(row["waitKind"], row["runKind"]) for row in rows] == [
        ("limit", "tool"),
        ("approval", "tool"),
        ("approval", "tool"),
        ("queue", "model"),
        ("queue", "handoff"),
    ]


def test_link_toggles_folding_of_one_call_only() -> None:
    rows = {row["node"].id: row["folding"] for row in _rows(TURN, TURN.nodes, ["slow", "x"])}
    assert rows["quick"] is None
    assert rows["slow"] == {"isFolded": True, "address": "/console/traces/c?fold=x"}
    assert rows["turn"] == {"isFolded": False, "address": "/console/traces/c?fold=slow%2Cx%2Cturn"}
    [row] = [row for row in _rows(TURN, TURN.nodes, ["slow"]) if row["node"].id == "slow"]
    assert row["folding"]["address"] == "/console/traces/c"
    assert (row["waitAt"], row["waits"], row["runAt"], row["runs"]) == (130.0, 100.0, 230.0, 500.0)
