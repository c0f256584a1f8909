"""How a call's state is worded: one place, for every command."""

from typing import Any

import pytest

from broker_config import serializer
from tests.unit.goondan_tasks.cli.fake_client import NOW, record, result

#: a moment 12 s after the call was queued
LATER = NOW + 12_000
ON_W = {"worker": "w", "attempt": 1, "claimed_at": NOW + 2_000, "has_started": True}


def ended(status: str = "done", code: str = "", **fields: Any) -> dict[str, Any]:
    """Return the fields of a call that has ended 3 s before."""
    error = {"error": {"code": code, "name": "E", "message": "m"}} if code else {}
    outcome = "error" if code else "ok"
    wire = serializer.encode(result(outcome, **error).to_wire())
    return {"status": status, "outcome": outcome, "result": wire, "finished_at": LATER - 3_000, **fields}


@pytest.mark.parametrize(
    ("fields", "state", "words"),
    [
        ({}, "queued", "queued for 12.0 s"),
        (
            {"requeued_at": LATER - 500, "attempt": 1},
            "queued",
            "queued again for 500 ms, after attempt 1",
        ),
        (
            {"waiting_for": "rate:bash__exec"},
            "waiting",
            "waiting for the limit rate:bash__exec, queued 12.0 s ago",
        ),
        ({"status": "running", **ON_W}, "running", "running on w for 10.0 s"),
        ({"status": "running", **ON_W, "attempt": 2}, "running", "running on w for 10.0 s, attempt 2"),
        (
            {"status": "running", **ON_W, "is_cancelled": True},
            "running",
            "running on w for 10.0 s, told to stop",
        ),
        (
            {"status": "running", **ON_W, "has_started": False},
            "running",
            "not started yet, claimed by w for 10.0 s",
        ),
        ({"status": "running"}, "running", "about to end: no worker has it"),
        ({"status": "running", **ON_W, "lost_at": LATER - 5_000}, "lost", "lost with w 5.0 s ago"),
        (
            {"status": "running", **ON_W, "lost_at": LATER - 5_000, "has_started": False},
            "lost",
            "lost with w 5.0 s ago, before it had started",
        ),
        (
            {"status": "pending", "awaits": "approval", "suspended_at": NOW, "expires_at": LATER + 60_000},
            "pending",
            "waiting for an approval for 12.0 s, expires in 60.0 s",
        ),
        (
            {"status": "pending", "awaits": "completion", "suspended_at": NOW},
            "pending",
            "waiting for its completion for 12.0 s",
        ),
        (ended(), "ok", "ended ok 3.0 s ago"),
        (ended(attempt=3), "ok", "ended ok 3.0 s ago, attempt 3"),
        (ended(code="E_TOOL"), "error", "ended with E_TOOL 3.0 s ago"),
        (ended(code="E_TOOL_CANCELLED"), "error", "cancelled 3.0 s ago"),
        (
            ended("dead", code="E_TOOL_POISONED"),
            "dead",
            "became a dead letter with E_TOOL_POISONED 3.0 s ago",
        ),
        (ended(code="E_TOOL", result=b"{"), "error", "ended with an error 3.0 s ago"),
    ],
)
def test_state_is_word_and_sentence(fields: dict[str, Any], state: str, words: str) -> None:
    call = record(**{"status": "queued", **fields})

    assert (call.state, call.state_text(LATER)) == (state, words)


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({}, None),  # no worker has looked at it yet
        ({"most_attempts": 3, "is_idempotent": True}, None),
        ({"most_attempts": 3, "is_idempotent": True, "has_started": True}, 2),
        ({"most_attempts": 3, "is_idempotent": True, "has_started": True, "deaths": 5}, 1),
        ({"most_attempts": 3, "is_idempotent": True, "has_started": True, "deaths": 10}, 0),
        ({"most_attempts": 3, "is_idempotent": True, "has_started": True, "deaths": 1}, 2),
        ({"most_attempts": 3, "is_idempotent": False, "has_started": True}, 0),
    ],
)
def test_runs_that_are_left_are_those_of_sweep(fields: dict[str, Any], left: int | None) -> None:
    assert record(**{"status": "running", **fields}).deadly_runs_left == left
