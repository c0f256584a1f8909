from dataclasses import dataclass
from typing import Any

import pytest
from redis.exceptions import RedisError, ResponseError

from broker_config.confirmation import Confirmation, NotConfirmedError, Unanswered
from broker_config.refusals import RefusedError
from broker_config.scripts import Script, ScriptCall
from broker_config.settings import Settings, SettingsError
from goondan_tasks.ledger.scripts import Scripts


@dataclass(frozen=True)
class Sent:
    script_call: Any


def confirmation(*, is_required: bool = True, **settings: Any) -> Confirmation:
    made = Confirmation.of(Settings(**{"wait_replicas": 2, **settings}), is_required=is_required)
    assert made is not None
    return made


def script(confirmation: Confirmation | None = None) -> Sent:
    return Sent(ScriptCall(Script("return 1", "sha", confirmation), [], []))


def barrier(confirmation: Confirmation) -> list[Sent]:
    return [Sent(one) for one in confirmation.barrier]


def test_without_setting_no_script_waits_for_replicas() -> None:
    scripts = Scripts.read(Settings())

    assert {getattr(scripts, name).confirmation for name in Scripts.__slots__} == {None}


def test_only_accepted_calls_and_marks_require_replicas() -> None:
    scripts = Scripts.read(Settings(wait_replicas=1))
    waiting = {name: getattr(scripts, name).confirmation for name in Scripts.__slots__}

    assert {name for name, one in waiting.items() if one and one.is_required} == {"fire", "submit", "start"}
    assert {name for name, one in waiting.items() if one and not one.is_required} == {
        *("finish", "finish_step", "finish_event", "suspend", "resolve", "approve", "cancel")
    }


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"wait_replicas": 2}, ("WAIT", 2, 1000)),
        ({"wait_replicas": 2, "wait_seconds": 0.25}, ("WAIT", 2, 250)),
        ({"wait_replicas": 0, "wait_aof": "on"}, ("WAITAOF", 1, 0, 1000)),
        ({"wait_replicas": 1, "wait_aof": "on"}, ("WAITAOF", 1, 1, 1000)),
    ],
)
def test_barrier_writes_and_then_waits(settings: dict[str, Any], command: tuple[Any, ...]) -> None:
    write, wait = confirmation(**settings).barrier

    assert write.command[:2] == ("SET", "goondan:barrier")
    assert wait.command == command


@pytest.mark.parametrize("seconds", [0, -1, 3.5])
def test_wait_that_outlasts_socket_is_refused(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setenv("GOONDAN_WAIT_SECONDS", str(seconds))
    with pytest.raises(SettingsError, match="GOONDAN_WAIT_SECONDS"):
        Settings.load()


def test_answers_are_withheld_until_barrier_is_answered() -> None:
    required = confirmation()
    unanswered = Unanswered[Sent]()
    first, marked, behind = script(), script(required), script()
    unanswered.add([first, marked, behind])
    unanswered.add_barrier(barrier(required))

    assert unanswered.take("one") == [(first, "one")]
    assert [unanswered.take(answer) for answer in ("two", "three", "OK")] == [[], [], []]
    assert (unanswered.due, unanswered.barriers) == (1, 1)
    assert unanswered.take(2) == [(marked, "two"), (behind, "three")]
    assert (unanswered.due, unanswered.barriers) == (0, 0)


def test_too_few_replicas_fail_only_scripts_requiring_them(caplog: pytest.LogCaptureFixture) -> None:
    required, wanted = confirmation(), confirmation(is_required=False)
    unanswered = Unanswered[Sent]()
    sent = [script(required), script(wanted), script()]
    unanswered.add(sent)
    unanswered.add_barrier(barrier(required))

    [*_, answered] = [unanswered.take(answer) for answer in ("one", "two", "three", "OK", 1)]

    assert [one for one, _ in answered] == sent
    failed, *others = (answer for _, answer in answered)
    assert isinstance(failed, NotConfirmedError)
    assert str(failed) == "1 of 2 replicas have confirmed it within 1 s"
    assert others == ["two", "three"]
    assert caplog.messages == []


def test_underreplicated_results_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    wanted = confirmation(is_required=False)

    faults = [wanted.fault("OK", replicas) for replicas in (1, 0, 2, 1)]

    assert [fault is None for fault in faults] == [False, False, True, False]
    assert len(caplog.messages) == 2


def test_master_demoted_during_wait_fails_results_too() -> None:
    wanted = confirmation(is_required=False)
    unanswered = Unanswered[Sent]()
    unanswered.add([script(wanted)])
    unanswered.add_barrier(barrier(wanted))
    demoted = RefusedError("UNBLOCKED force unblock from blocking operation, instance state changed")

    [*_, answered] = [unanswered.take(answer) for answer in ("one", "OK", demoted)]

    assert [answer for _, answer in answered] == [demoted]


def test_error_of_script_is_not_replaced_by_barriers() -> None:
    required = confirmation()
    unanswered = Unanswered[Sent]()
    unanswered.add([script(required)])
    unanswered.add_barrier(barrier(required))
    own: RedisError = ResponseError("WRONGTYPE")

    [*_, answered] = [unanswered.take(answer) for answer in (own, "OK", 0)]

    assert [answer for _, answer in answered] == [own]


def test_lost_connection_gives_up_scripts_but_no_barriers() -> None:
    required = confirmation()
    unanswered = Unanswered[Sent]()
    sent = [script(required), script()]
    unanswered.add(sent[:1])
    unanswered.add_barrier(barrier(required))
    unanswered.add(sent[1:])
    unanswered.take("one")

    assert unanswered.give_up() == sent
    assert (unanswered.due, unanswered.barriers) == (0, 0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([0, 1], "not even the master and 1 of 1 replicas have synced it to disk within 1 s"),
        ([1, 0], "the master and 0 of 1 replicas have synced it to disk within 1 s"),
    ],
)
def test_write_not_on_disk_is_not_confirmed(answer: list[int], said: str) -> None:
    assert str(confirmation(wait_replicas=1, wait_aof="on").fault("OK", answer)) == said
    assert confirmation(wait_replicas=1, wait_aof="on").fault("OK", [1, 1]) is None
