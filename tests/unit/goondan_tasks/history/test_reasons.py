"""Why a call is not running, in one sentence."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord
from goondan_tasks.history.reasons import read_reason
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import LimitScripts
from goondan_tasks.ledger.submission import event_submission
from tests.unit.goondan_tasks.ledger.calls import ONCE, a_call, an_event, claimed, record_of, submit

ONE_AT_A_TIME = "seats 1 0 - concurrency:notes.find"
WORKER = WorkerRecord(
    name="w1",
    pid=1,
    host="h",
    agents=("coder",),
    concurrency=2,
    root_id="r",
    started_at="2026-01-01T00:00:00Z",
)


def reason(
    ledger: Ledger, call: ToolCall, *, workers: Sequence[WorkerRecord] = (), handles: bool = True
) -> str | None:
    agent = AgentRecord(name="coder", swarm="s", workspace="w", has_entry=handles)
    return read_reason(ledger, record_of(ledger, call), lambda: {"coder": agent}, lambda: workers)


def test_reason_names_missing_worker_and_is_empty_when_running(ledger: Ledger) -> None:
    submit(ledger, a_call())
    assert reason(ledger, a_call()) == "No worker serves coder: goondan worker --agent coder"
    assert reason(ledger, a_call(), workers=[WORKER]) == (
        "Its workers have 2 places; 0 calls of coder run, and 1 wait in its queue."
    )
    claimed(ledger, a_call(), ONCE)
    assert reason(ledger, a_call(), workers=[WORKER]) is None


def test_limited_call_names_holder_and_calls_ahead(ledger: Ledger) -> None:
    calls = [a_call(), *(new_call("coder", "bash__exec", {"n": n}, {}) for n in range(2))]
    limits = LimitScripts(ledger)
    for call in calls:
        submit(ledger, call)
        claim = claimed(ledger, call, ONCE)
        limits.admit(claim.run.id, call, ONE_AT_A_TIME, message=b"m", run_seconds=1, token=claim.token).run(
            ledger.redis
        )

    told = [reason(ledger, call) for call in calls]

    assert told[0] is None
    held = f"notes.find is limited to 1 at a time; held by {identity_of(calls[0])}"
    assert told[1:] == [f"{held}; it is the next.", f"{held}; 1 call before it."]


def test_paused_call_says_how_it_is_resumed(ledger: Ledger) -> None:
    submit(ledger, a_call())
    record = replace(record_of(ledger, a_call()), paused="paused by ann")
    assert read_reason(ledger, record, dict, tuple) == "It runs when that is resumed: goondan resume coder"


def test_reason_names_awaited_person_or_time(ledger: Ledger) -> None:
    submit(ledger, a_call())
    record = record_of(ledger, a_call())
    states = {
        "scheduled": replace(record, status="scheduled"),
        "person": replace(record, status="pending", awaits="approval"),
        "then completed": replace(record, status="pending", awaits="completion"),
        "lease is over": replace(record, status="running", lost_at=1),
    }
    told = {name: read_reason(ledger, one, dict, tuple) for name, one in states.items()}
    assert told.pop("scheduled") == "Its time is to come."
    assert all(name in (text or "") for name, text in told.items())


@pytest.mark.parametrize("handles", [True, False])
def test_event_names_its_predecessor_or_missing_handler(ledger: Ledger, handles: bool) -> None:
    first, second = an_event(1), an_event(2)
    ledger.submit_all([event_submission(event) for event in (first, second)], "p1")

    told = reason(ledger, second, workers=[WORKER], handles=handles)

    assert told is not None
    expected = (
        f"{identity_of(first)} is before it" if handles else "client.receive('coder') handles its events"
    )
    assert expected in told
