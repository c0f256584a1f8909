"""Messages that were reserved without a claim."""

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from celery.worker import state
from fakeredis import FakeRedis
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.queue_reader import Batch
from broker_config.settings import Settings
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.events import mailbox_of
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord
from workers.delivery.incoming import Incoming
from workers.pool.intake import Intake

CALL: JsonObject = {"toolName": "echo__args", "args": {}}


class Around:
    """What an intake has around it, and what it was asked to do."""

    def __init__(self, backend_error: Exception | None = None) -> None:
        self.acknowledged: list[str] = []
        #: the keys of the records that replace acknowledged messages
        self.records: list[str] = []
        self.returned: list[str] = []
        self.buried: list[str] = []
        self.refused: list[str] = []
        self.ledger = Ledger(FakeRedis(), Settings())
        self._backend_error = backend_error
        delivery = SimpleNamespace(
            writer=self,
            ledger=self.ledger,
            reaper=Reaper(self.ledger, ""),
            call_of=lambda incoming: incoming.call(1_000),
            bury=lambda queue, worker, reason, shown: self.buried.append(reason),
            refuse=self._refuse,
        )
        runtime = SimpleNamespace(delivery=delivery, settings=Settings())
        self.intake = Intake(cast(Any, runtime), SimpleNamespace(backend=self))

    def put_off(self, script_call: Any, _receiver: object) -> None:
        self.acknowledged += script_call.arguments
        self.records += script_call.keys[2:]

    def send(self, script_call: Any, _receiver: object) -> None:
        self.returned += script_call.arguments[1:]

    def mark_as_failure(self, *_: Any, **__: Any) -> None:
        if self._backend_error is not None:
            raise self._backend_error

    def _refuse(self, incoming: Incoming, worker: str, error: GoondanError) -> None:
        self.refused.append(error.message)

    def read(self, tag: str = "tag-1", call: JsonObject = CALL, **headers: Any) -> Incoming | None:
        """Read a message of a plain Celery producer."""
        return self.read_data(data_of({"call": call}, **headers), tag=tag)

    def read_data(self, data: bytes, queue: str = "agent.smith", tag: str = "tag-1") -> Incoming | None:
        [message] = self.intake.hold(Batch(messages=[(tag, queue, data)]))
        return self.intake.read(message, "w1")

    def record(self) -> CallRecord:
        record = self.ledger.record("call-1")
        assert record is not None
        return record


def data_of(kwargs: JsonObject, **headers: Any) -> bytes:
    body = json.dumps([[], kwargs, {}])
    message = {
        "headers": {"task": "goondan.tool_call", "id": "call-1", **headers},
        "properties": {},
        "body": body,
        "content-type": "application/json",
    }
    return json.dumps(message).encode()


def later(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_countdown_call_becomes_record_replacing_its_message() -> None:
    around, eta = Around(), later(60)
    assert around.read(eta=eta) is None
    record = around.record()
    assert (record.status, record.call.args) == ("scheduled", CALL["args"])
    assert 0 <= (record.not_before or 0) - datetime.fromisoformat(eta).timestamp() * 1000 <= 1
    assert (around.acknowledged, around.records) == (["tag-1"], ["goondan:call:call-1"])
    assert around.ledger.redis.llen("agent.smith") == 0


def test_message_queued_on_time_is_ordinary_call() -> None:
    around = Around()
    around.read(eta=later(60))
    around.intake._delivery.reaper.run_now("call-1")
    queued: Any = around.ledger.redis.rpop("agent.smith")
    incoming = around.read_data(queued, tag="tag-2")
    assert incoming is not None
    assert (incoming.id, incoming.was_stored) == ("call-1", True)


def test_countdown_event_has_no_mailbox_place_yet() -> None:
    around = Around()
    payload = {"input": 1, "instanceKey": "i"}
    message = {"type": "event", "from": "client", "to": "smith", "payload": payload}
    data = data_of({"message": message}, task="goondan.event", eta=later(60))
    assert around.read_data(data, "agent.smith.events") is None
    record = around.record()
    assert record.status == "scheduled"
    assert around.ledger.redis.hexists("goondan:call:call-1", "box")
    assert not around.ledger.redis.exists(around.ledger.keys.mailbox(mailbox_of(record.call)))


def test_time_in_call_itself_counts_like_eta() -> None:
    around = Around()
    assert around.read(call={**CALL, "notBefore": later(60)}) is None
    assert around.record().status == "scheduled"


def test_repeated_message_is_acknowledged_and_keeps_time() -> None:
    around = Around()
    around.read(eta=later(60))
    first = around.record().not_before
    assert around.read("tag-2", eta=later(90)) is None
    assert around.record().not_before == first
    assert around.acknowledged == ["tag-1", "tag-2"]


def test_other_call_of_known_id_goes_to_claim() -> None:
    around = Around()
    around.read(eta=later(60))
    assert around.read("tag-2", call={**CALL, "args": {"other": 1}}, eta=later(60)) is not None
    assert around.acknowledged == ["tag-1"]


def test_invalid_call_with_countdown_is_refused_immediately() -> None:
    around = Around()
    assert around.read(call={**CALL, "timeoutSeconds": -1}, eta=later(60)) is not None  # its claim refuses it
    assert around.ledger.record("call-1") is None


def test_time_that_is_too_far_ahead_is_refused() -> None:
    around = Around()
    assert around.read(eta=later(400 * 86_400)) is None
    [message] = around.refused
    assert "is more than 366 days ahead" in message
    assert around.acknowledged == ["tag-1"]


def test_earlier_expiry_is_scheduled_calls_due_time() -> None:
    around, expires = Around(), later(30)
    around.read(eta=later(60), expires=expires)
    due = around.ledger.redis.zscore(around.ledger.keys.due, "call-1")
    assert due == pytest.approx(datetime.fromisoformat(expires).timestamp() * 1000, abs=1)


def test_call_revoked_before_arrival_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around()
    monkeypatch.setattr(state, "revoked", {"call-1"})
    assert around.read(eta=later(60)) is None
    assert (around.refused, around.acknowledged) == (["The call was revoked."], ["tag-1"])
    assert around.records == ["goondan:call:call-1"]


@pytest.mark.parametrize(
    "eta",
    [None, "", later(-5), later(-5).removesuffix("+00:00")],
    ids=["none", "empty", "past", "without-zone"],  # xdist wants the same ids in each process
)
def test_message_already_due_is_read_at_once(eta: str | None) -> None:
    incoming = Around().read(eta=eta)
    assert incoming is not None
    assert incoming.call(1_000).tool_name == "echo__args"


def test_expiry_of_message_is_deadline_of_its_call() -> None:
    expires = later(60)
    incoming = Around().read(expires=expires)
    assert incoming is not None
    deadline = incoming.call(1_000).deadline
    assert deadline is not None
    assert datetime.fromisoformat(deadline) == datetime.fromisoformat(expires)


@pytest.mark.parametrize("headers", [{"eta": "soon"}, {"eta": later(9), "id": ""}, {"task": "no.such"}])
def test_message_without_call_is_buried_and_acknowledged(headers: dict[str, Any]) -> None:
    around = Around()
    assert around.read(**headers) is None
    assert (len(around.buried), around.acknowledged, around.intake.is_idle) == (1, ["tag-1"], True)


def test_message_stays_in_flight_while_redis_is_away() -> None:
    around = Around(RedisConnectionError("gone"))
    assert around.read(task="no.such") is None
    assert (around.buried, around.acknowledged, around.returned) == ([], [], [])
    assert around.intake.is_idle  # it is not renewed here, so another worker gets it after a lease


def test_fault_while_answering_message_makes_dead_letter() -> None:
    around = Around(LookupError("a fault of Celery's"))
    assert around.read(task="no.such") is None
    assert (around.buried, around.acknowledged) == (['LookupError("a fault of Celery\'s")'], ["tag-1"])
