"""Messages that were reserved without a claim."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state
from fakeredis import FakeRedis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from broker_config.queue_reader import Batch
from broker_config.settings import Settings
from goondan_tasks.contract.errors import GoondanError
from workers.concurrency.watchdog import Alarm, CallOff
from workers.delivery.incoming import Incoming
from workers.pool.intake import Intake, ReservedMessage

CALL = {"toolName": "echo__args", "args": {}}


class Around:
    """What an intake has around it, and what it was asked to do."""

    def __init__(self, backend_error: Exception | None = None) -> None:
        self.acknowledged: list[str] = []
        #: the keys of the records that replace acknowledged messages
        self.records: list[str] = []
        self.returned: list[str] = []
        self.buried: list[str] = []
        self.refused: list[str] = []
        self.again: list[ReservedMessage] = []
        self.alarms: list[Alarm] = []
        self.called_off = 0
        self._backend_error = backend_error
        delivery = SimpleNamespace(
            writer=self,
            watchdog=self,
            ledger=SimpleNamespace(redis=FakeRedis(), keys=Keys()),
            bury=lambda queue, worker, reason, shown: self.buried.append(reason),
            refuse=self._refuse,
        )
        runtime = SimpleNamespace(delivery=delivery, settings=Settings())
        self.intake = Intake(cast(Any, runtime), SimpleNamespace(backend=self), self.again.append)

    def put_off(self, script_call: Any, _receiver: object) -> None:
        self.acknowledged += script_call.arguments
        self.records += script_call.keys[2:]

    def send(self, script_call: Any, _receiver: object) -> None:
        self.returned += script_call.arguments[1:]

    def watch(self, seconds: float, alarm: Alarm) -> CallOff:
        assert seconds > 0
        self.alarms.append(alarm)

        def call_off() -> None:
            self.called_off += 1

        return call_off

    def mark_as_failure(self, *_: Any, **__: Any) -> None:
        if self._backend_error is not None:
            raise self._backend_error

    def _refuse(self, incoming: Incoming, worker: str, error: GoondanError) -> None:
        self.refused.append(error.message)

    def read(self, tag: str = "tag-1", **headers: Any) -> Incoming | None:
        """Read a message of a plain Celery producer."""
        [message] = self.intake.hold(Batch(messages=[(tag, "agent.smith", data_of(**headers))]))
        return self.intake.read(message, "w1")


def data_of(**headers: Any) -> bytes:
    body = json.dumps([[], {"call": CALL}, {}])
    message = {
        "headers": {"task": "goondan.tool_call", "id": "call-1", **headers},
        "properties": {},
        "body": body,
        "content-type": "application/json",
    }
    return json.dumps(message).encode()


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_message_with_a_countdown_waits_for_its_time() -> None:
    around = Around()
    assert around.read(eta=later(60)) is None
    assert [one["request"]["id"] for one in around.intake.scheduled("w1")] == ["call-1"]
    [alarm] = around.alarms
    alarm()
    assert [message.tag for message in around.again] == ["tag-1"]
    assert (around.intake.scheduled("w1"), around.acknowledged) == ([], [])


def test_messages_with_countdowns_go_back_in_their_order_when_the_worker_stops() -> None:
    around = Around()
    for number in range(2):
        around.read(f"tag-{number}", eta=later(60))
    around.intake.give_back(around.intake.take_later())
    assert (around.returned, around.called_off) == (["tag-1", "tag-0"], 2)
    around.alarms[0]()
    assert (around.again, around.intake.is_idle) == ([], True)


def test_call_that_is_revoked_before_its_time_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around()
    around.read(eta=later(60))
    monkeypatch.setattr(state, "revoked", {"call-1"})
    around.intake.note_revoked(["call-0", "call-1"])
    assert ([message.tag for message in around.again], around.called_off) == (["tag-1"], 1)
    assert around.intake.read(around.again[0], "w1") is None
    assert (around.refused, around.acknowledged) == (["The call was revoked."], ["tag-1"])
    assert around.records == ["goondan:call:call-1"]


@pytest.mark.parametrize(
    "eta",
    [None, "", later(-5), later(-5).removesuffix("+00:00")],
    ids=["none", "empty", "past", "without-zone"],  # xdist wants the same ids in each process
)
def test_message_whose_time_has_come_is_read_at_once(eta: str | None) -> None:
    incoming = Around().read(eta=eta)
    assert incoming is not None
    assert incoming.call(1_000).tool_name == "echo__args"


def test_expiry_of_a_message_is_the_deadline_of_its_call() -> None:
    expires = later(60)
    incoming = Around().read(expires=expires)
    assert incoming is not None
    deadline = incoming.call(1_000).deadline
    assert deadline is not None
    assert datetime.fromisoformat(deadline) == datetime.fromisoformat(expires)


@pytest.mark.parametrize("headers", [{"eta": "soon"}, {"eta": later(9), "id": ""}, {"task": "no.such"}])
def test_message_that_holds_no_call_is_buried_and_acknowledged(headers: dict[str, str]) -> None:
    around = Around()
    assert around.read(**headers) is None
    assert (len(around.buried), around.acknowledged, around.intake.is_idle) == (1, ["tag-1"], True)


def test_message_stays_in_flight_while_redis_cannot_take_its_answer() -> None:
    around = Around(RedisConnectionError("gone"))
    assert around.read(task="no.such") is None
    assert (around.buried, around.acknowledged, around.returned) == ([], [], [])
    assert around.intake.is_idle  # it is not renewed here, so another worker gets it after a lease


def test_fault_in_the_answer_to_a_message_makes_a_dead_letter_of_it() -> None:
    around = Around(LookupError("a fault of Celery's"))
    assert around.read(task="no.such") is None
    assert (around.buried, around.acknowledged) == (['LookupError("a fault of Celery\'s")'], ["tag-1"])
