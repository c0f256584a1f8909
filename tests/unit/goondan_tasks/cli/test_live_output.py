"""What is told while a call is waited for."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from rich.status import Status

from goondan_tasks.cli import live_output
from goondan_tasks.cli.output import Screen
from goondan_tasks.client.status import QueueStatus
from goondan_tasks.contract.errors import BrokerUnreachableError, WaitTimeout
from goondan_tasks.contract.names import DELEGATE_TOOL
from goondan_tasks.contract.output import Progress
from goondan_tasks.ledger.record import CallRecord
from tests.unit.goondan_tasks.cli.fake_client import (
    CALL_ID,
    NOW,
    FakeClient,
    FakePendingCall,
    queue_status,
    record,
    result,
    worker,
)
from tests.unit.goondan_tasks.cli.invoke import goondan

QUEUE = QueueStatus(agent="coder", queue="agent.coder", backlog=3, running=2, waiting_for_limit=4, workers=1)


def wait(client: FakeClient, waits: int, timeout: float | None = None) -> str:
    """Wait for a call whose result is there after ``waits`` attempts; return its status."""
    pending = FakePendingCall(result(), waits)
    answer = live_output.wait_for_result(client, pending, agent="coder", timeout=timeout)  # type: ignore[arg-type]
    return answer.status


def test_result_that_is_there_is_returned_without_word(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wait(client, 0) == "ok"
    assert capsys.readouterr().err == ""


def test_waiting_lasts_until_result_exists(client: FakeClient) -> None:
    assert wait(client, 5) == "ok"


def test_waiting_ends_after_timeout_and_tells_duration(client: FakeClient) -> None:
    with pytest.raises(WaitTimeout) as ended:
        wait(client, 10**9, timeout=0.05)

    assert (ended.value.call_id, ended.value.seconds) == (CALL_ID, 0.05)


def test_off_terminal_missing_worker_is_reported_once(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_output, "PATIENCE_SECONDS", 0)
    client.worker_records = [worker(agents=("planner",))]

    wait(client, 5)

    assert (
        capsys.readouterr().err
        == "no worker serves agent 'coder'; start one with: goondan worker --agent coder\n"
    )


def test_no_hint_to_start_worker_where_orchestrator_runs(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_output, "PATIENCE_SECONDS", 0)
    client.worker_records, client.is_orchestrated = [], True

    wait(client, 5)

    told = capsys.readouterr().err
    assert told.startswith(
        "no worker serves agent 'coder' yet; `goondan dev` or `goondan orchestrator` starts"
    )


def test_off_terminal_nothing_is_reported_while_worker_exists(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_output, "PATIENCE_SECONDS", 0)

    wait(client, 5)

    assert capsys.readouterr().err == ""


def test_off_terminal_limit_wait_is_reported_once(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_output, "PATIENCE_SECONDS", 0)
    client.records = [record(waiting_for="rate:notes__find")]

    wait(client, 5)

    assert capsys.readouterr().err == "queued, waits for rate:notes__find\n"


@pytest.mark.parametrize(
    ("standing", "shown"),
    [
        ({}, "queued on agent.coder: 3 waiting, 2 running, 1 worker"),
        (
            {"waiting_for": "rate:notes__find"},
            "queued, waits for rate:notes__find: 4 wait for limits",
        ),
        (
            {"status": "running", "worker": "coder-7@host", "attempt": 2, "claimed_at": NOW + 60_000},
            "not started yet, claimed by coder-7@host for 0 ms, attempt 2",
        ),
    ],
)
def test_terminal_shows_state_of_awaited_call(
    standing: dict[str, object], shown: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_output, "wall_clock", lambda: NOW + 60_000.0)
    client.records = [record(**standing)]  # type: ignore[arg-type]
    client.figures = {"coder": QUEUE}
    lines = status_lines(client, monkeypatch)

    assert lines == [f"{shown} · 0 s"] * 2


def test_on_terminal_line_appears_despite_late_first_look(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.figures, shown = {"coder": QUEUE}, list[str]()
    monkeypatch.setattr(Status, "start", lambda _: shown.append("shown"))
    monkeypatch.setattr(live_output, "TICK_SECONDS", 0.0)  # every look is late

    status_lines(client, monkeypatch)

    assert shown


def test_on_terminal_call_with_progress_gets_bar(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Progress(done=3, total=10, message="page\n3", updated_at="2026-02-01T10:00:00.000Z")
    client.records = [record(status="running", worker="coder-7@host", attempt=1, progress=told)]
    monkeypatch.setattr(live_output, "wall_clock", lambda: NOW + 5_000.0)

    [row, _] = status_lines(client, monkeypatch)
    Screen().print(row)

    line = capsys.readouterr().out
    assert line.startswith("not started yet, claimed by coder-7@host for 5.0 s · 0 s ━━━━━━━ ")
    assert line.rstrip().endswith("3/10 · page\\n3")


def test_on_terminal_missing_worker_is_reported(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.worker_records = []

    [line, _] = status_lines(client, monkeypatch)

    assert line.startswith("no worker serves agent 'coder'; start one with: goondan worker --agent coder")


def test_unfetched_request_to_entryless_agent_names_missing_producer(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.records = [request()]

    [line, _] = status_lines(client, monkeypatch)

    assert line.startswith("no producer has fetched it yet: coder has no entry")


def test_request_waits_on_queue_of_events(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.records = [request()]
    client.agent_records["coder"] = client.agent_records["coder"].model_copy(update={"has_entry": True})
    client.figures = {"coder": QUEUE}

    [line, _] = status_lines(client, monkeypatch)

    assert line.startswith("queued on agent.coder.events: 3 waiting, 2 running, 1 worker ")


def request() -> CallRecord:
    """Make the record of a request that nobody deals with yet."""
    call = record().call.model_copy(update={"tool_name": DELEGATE_TOOL})
    return dataclasses.replace(record(), call=call)


def status_lines(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wait twice on a terminal, and return what its status line showed."""
    shown: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(live_output, "monotonic", lambda: 0.0)
    monkeypatch.setattr(Status, "update", lambda _, text: shown.append(text))
    wait(client, 2)
    return shown


QUICK = "--watch=0.1"

Looks = Callable[..., list[int]]


@pytest.fixture
def looks(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Have the client's queues found in one way after the other; return what was looked at so far."""

    def script(*found: Any) -> list[int]:
        seen: list[int] = []

        def look() -> list[QueueStatus]:
            seen.append(len(seen))
            answer = found[len(seen) - 1]
            if isinstance(answer, BaseException):
                raise answer
            return [queue_status("coder", backlog=answer)]

        monkeypatch.setattr(client, "queues", look)
        return seen

    return script


def test_watching_continues_until_ctrl_c_without_failure(looks: Looks) -> None:
    seen = looks(1, 2, KeyboardInterrupt())

    outcome = goondan("queues", QUICK)

    assert (outcome.exit_code, len(seen)) == (0, 3)
    heading, first, between, _, second = outcome.stdout.splitlines()
    assert (heading.split()[0], first.split()[2], between, second.split()[2]) == ("agent", "1", "", "2")


def test_programs_get_document_on_each_line(looks: Looks) -> None:
    looks(1, 2, KeyboardInterrupt())

    lines = goondan("queues", QUICK, "--json").stdout.splitlines()

    assert [json.loads(line)[0]["backlog"] for line in lines] == [1, 2]


def test_outage_is_reported_and_watching_continues(looks: Looks) -> None:
    away = BrokerUnreachableError("Redis is away.")
    looks(1, away, 2, KeyboardInterrupt())

    people = goondan("queues", QUICK)
    looks(1, away, 2, KeyboardInterrupt())
    programs = goondan("queues", QUICK, "--json")

    assert (people.exit_code, people.stdout.count("agent.coder")) == (0, 2)
    assert people.stderr.startswith("Error: Redis is away.\nWhat to do: ")
    first, error, second = map(json.loads, programs.stdout.splitlines())
    assert error["error"]["code"] == "E_BROKER_UNREACHABLE"
    assert (first[0]["backlog"], second[0]["backlog"]) == (1, 2)


def test_broker_that_was_never_there_is_failure(looks: Looks) -> None:
    seen = looks(BrokerUnreachableError("Redis is away."))

    assert (goondan("queues", QUICK).exit_code, len(seen)) == (5, 1)


def test_terminal_shows_fault_above_newest_answer(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    looks(1, BrokerUnreachableError("Redis is away."), KeyboardInterrupt())

    shown = goondan("queues", QUICK)

    assert shown.stderr == ""
    assert "every 0.1 s · Ctrl-C ends" in shown.stdout
    assert shown.stdout.rindex("Redis is away.") < shown.stdout.rindex("coder")


def test_sigterm_ends_it_as_ctrl_c_does(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    looked = []

    def look() -> list[QueueStatus]:
        looked.append(1)
        if len(looked) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return [queue_status("coder")]

    monkeypatch.setattr(client, "queues", look)

    assert goondan("queues", QUICK, "--json").exit_code == 0
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("command", "method"), [("calls", "calls"), ("agents", "agent_statuses")])
def test_calls_and_agents_can_be_watched(
    command: str, method: str, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = getattr(client, method)
    answers = [look(None, 1) if method == "calls" else look()]
    monkeypatch.setattr(client, method, Mock(side_effect=[*answers, *answers, KeyboardInterrupt]))

    outcome = goondan(command, QUICK, "--json")

    first, second = outcome.stdout.splitlines()
    assert (outcome.exit_code, first) == (0, second)


@pytest.mark.parametrize(
    "words", [("0",), ("-1",), ("nan",), ("inf",), ("0.01",), ("1e9",), ("2d",), ("soon",), ("1", "2")]
)
def test_interval_that_makes_no_sense_is_usage_error(words: tuple[str, ...], looks: Looks) -> None:
    seen = looks()

    outcome = goondan("queues", "--watch", *words)

    assert (outcome.exit_code, seen) == (2, [])
