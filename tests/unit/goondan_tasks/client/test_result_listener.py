"""Notifications of results, right and wrong ones."""

import logging

import fakeredis
import pytest

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.client.result_listener import ResultListener
from tests.unit.goondan_tasks.client.test_pending_call import a_result

UNREADABLE = [b"id-1 {", b"id-1 \xff", b"\xff", b'id-1 {"v":2}', b"id-1 []"]


@pytest.mark.parametrize("data", UNREADABLE)
def test_a_notification_that_cannot_be_read_is_logged_and_the_next_one_is_heard(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with fakeredis.FakeRedis() as redis, caplog.at_level(logging.WARNING):
        keys = Keys("goondan")
        listener = ResultListener(redis, keys, lambda _: None)
        listener.start()
        future = listener.future("id-2")

        redis.publish(keys.results(listener.producer), data)
        result = a_result("ok")
        wire = serializer.encode(result.to_wire())
        redis.publish(keys.results(listener.producer), b"id-2 " + wire)

        assert future.result(30) == result
        assert "cannot be read" in caplog.text
        listener.close()


def test_a_result_is_heard_however_deeply_its_output_is_nested() -> None:
    output: object = 2**70
    for _ in range(500):
        output = [output]
    result = a_result("ok").model_copy(update={"output": output})
    with fakeredis.FakeRedis() as redis:
        listener = ResultListener(redis, Keys("goondan"), lambda _: None)
        listener.start()
        future = listener.future("id-1")

        wire = serializer.encode(result.to_wire())
        redis.publish(Keys("goondan").results(listener.producer), b"id-1 " + wire)

        assert future.result(30) == result
        listener.close()
