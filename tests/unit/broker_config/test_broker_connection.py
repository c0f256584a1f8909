"""A broker that is away is looked for soon and often."""

from collections.abc import Iterator

import pytest
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.broker_connection import BrokerConnection
from broker_config.options import celery_options
from broker_config.settings import Settings
from goondan_tasks.celery import app

AWAY = "redis://127.0.0.1:1/0"


def refuse_with(monkeypatch: pytest.MonkeyPatch, reasons: Iterator[str]) -> None:
    """Let every attempt fail, for another of the reasons, and none be waited for."""

    def refuse(connection: BrokerConnection) -> None:
        raise RedisConnectionError(next(reasons))

    monkeypatch.setattr(BrokerConnection, "_establish_connection", refuse)
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: None)


def test_lost_broker_is_retried_soon_then_regularly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_with(monkeypatch, map(str, range(99)))
    waits: list[float] = []
    with BrokerConnection(AWAY) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda error, seconds: waits.append(seconds), max_retries=12)
    assert waits[0] < 0.5
    assert waits == sorted(waits)
    assert 2.5 < waits[-1] < 3.5


def test_caller_may_wait_otherwise() -> None:
    with BrokerConnection(AWAY) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_workers_use_our_broker_connection() -> None:
    assert app.amqp.Connection is BrokerConnection


def test_each_reason_in_turn_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_with(monkeypatch, iter(["away", "away", "full", "full", "away", "away"]))
    told: list[str] = []
    with BrokerConnection(AWAY) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda error, seconds: told.append(str(error)), max_retries=5)
    assert told == ["away", "full"]


def test_worker_never_gives_its_broker_up() -> None:
    assert celery_options(Settings.load(), [])["broker_connection_max_retries"] is None
