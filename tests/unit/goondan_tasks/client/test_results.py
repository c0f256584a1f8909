"""Notifications of results, right and wrong ones."""

import logging
from collections.abc import Iterator

import fakeredis
import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.client.results import ResultListener
from goondan_tasks.contract.messages import ToolCallResult
from tests.unit.goondan_tasks.client.test_pending_call import a_result

KEYS = Keys("goondan")
OK = a_result("ok")
LINE = serializer.encode(OK.to_wire())


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def listener(redis: Redis) -> Iterator[ResultListener]:
    listener = ResultListener(redis, KEYS, {"large": OK}.get)
    listener.start()
    yield listener
    listener.close()


def heard(listener: ResultListener, redis: Redis, data: bytes, *call_ids: str) -> list[ToolCallResult | None]:
    """Publish one notification, and return what calls are told within a time."""
    expected = listener.expect(call_ids)
    redis.publish(KEYS.results(listener.producer), data)
    for one in expected:
        listener.wait(one, 30)
    return [one.result() for one in expected]


@pytest.mark.parametrize("data", [b"\xff", b"\xff " + LINE, b"\xff\n" + b"id-1 " + LINE])
def test_unreadable_line_is_logged_and_next_is_heard(
    listener: ResultListener, redis: Redis, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert heard(listener, redis, data + b"\nid-2 " + LINE, "id-2") == [OK]
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("damaged", [b"{", b"\xff", b'{"v":2}', b"[]"])
def test_unreadable_result_raises_whenever_it_is_requested(
    listener: ResultListener, redis: Redis, damaged: bytes
) -> None:
    [expected] = listener.expect(["id-1"])
    redis.publish(KEYS.results(listener.producer), b"id-1 " + damaged)
    listener.wait(expected, 30)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\S"):
            expected.result()


def test_one_notification_holds_several_results(listener: ResultListener, redis: Redis) -> None:
    data = b"\n".join((b"id-1 " + LINE, b"nobody's " + LINE, b"large", b"id-2 " + LINE))
    assert heard(listener, redis, data, "id-1", "large", "id-2") == [OK, OK, OK]


def test_interim_and_final_result_may_share_notification(listener: ResultListener, redis: Redis) -> None:
    [first] = listener.expect(["id-1"])
    interim = serializer.encode(a_result("pending").to_wire())
    redis.publish(KEYS.results(listener.producer), b"id-1 " + interim + b"\nid-1 " + LINE)
    listener.wait(first, 30)
    assert first.result() == a_result("pending")
    assert first.following is not None
    listener.wait(first.following, 30)
    assert first.following.result() == OK


def test_result_with_deeply_nested_output_is_heard(listener: ResultListener, redis: Redis) -> None:
    output: object = 2**70
    for _ in range(serializer.DEEPEST):
        output = [output]
    result = OK.model_copy(update={"output": output})
    assert heard(listener, redis, b"id-1 " + serializer.encode(result.to_wire()), "id-1") == [result]


def test_result_no_longer_expected_is_not_kept(listener: ResultListener) -> None:
    listener.expect(["id-1"])
    assert listener.expected_ids() == []
