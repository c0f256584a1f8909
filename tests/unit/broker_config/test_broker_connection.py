"""A broker that is away is looked for soon and often."""

import pytest
from kombu.exceptions import OperationalError

from broker_config.broker_connection import BrokerConnection
from goondan_tasks.celery import app

AWAY = "redis://127.0.0.1:1/0"


def test_a_lost_broker_is_looked_for_every_few_seconds_and_at_first_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda seconds: None)
    waits: list[float] = []
    with BrokerConnection(AWAY) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda error, seconds: waits.append(seconds), max_retries=12)
    assert waits[0] < 0.5
    assert waits == sorted(waits)
    assert 2.5 < waits[-1] < 3.5


def test_a_caller_may_wait_otherwise() -> None:
    with BrokerConnection(AWAY) as connection, pytest.raises(OperationalError):
        connection.ensure_connection(max_retries=1, interval_start=0)


def test_workers_connect_so() -> None:
    assert app.amqp.Connection is BrokerConnection
