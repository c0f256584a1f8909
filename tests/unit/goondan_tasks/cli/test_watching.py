"""--watch: the same answer again and again."""

import json
import os
import signal
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from goondan_tasks.client.queue_status import QueueStatus
from goondan_tasks.errors import BrokerUnreachableError
from tests.unit.goondan_tasks.cli.fake_client import FakeClient, queue_status
from tests.unit.goondan_tasks.cli.invoke import goondan

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


def test_it_looks_again_until_ctrl_c_which_is_no_failure(looks: Looks) -> None:
    seen = looks(1, 2, KeyboardInterrupt())

    outcome = goondan("queues", QUICK)

    assert (outcome.exit_code, len(seen)) == (0, 3)
    heading, first, between, _, second = outcome.stdout.splitlines()
    assert (heading.split()[0], first.split()[2], between, second.split()[2]) == ("agent", "1", "", "2")


def test_programs_get_a_document_on_each_line(looks: Looks) -> None:
    looks(1, 2, KeyboardInterrupt())

    lines = goondan("queues", QUICK, "--json").stdout.splitlines()

    assert [json.loads(line)[0]["backlog"] for line in lines] == [1, 2]


def test_an_outage_is_told_and_outlived(looks: Looks) -> None:
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


def test_a_broker_that_was_never_there_is_a_failure(looks: Looks) -> None:
    seen = looks(BrokerUnreachableError("Redis is away."))

    assert (goondan("queues", QUICK).exit_code, len(seen)) == (5, 1)


def test_a_terminal_shows_the_newest_answer_and_what_is_wrong_above_it(
    looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_an_interval_that_makes_no_sense_is_a_usage_error(words: tuple[str, ...], looks: Looks) -> None:
    seen = looks()

    outcome = goondan("queues", "--watch", *words)

    assert (outcome.exit_code, seen) == (2, [])
