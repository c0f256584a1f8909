"""Who reads the results of a producer: whoever waits, or the listener's own thread. On a real Redis."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic
from unittest.mock import Mock

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.keys import Keys
from goondan_tasks.client import results
from goondan_tasks.client.results import Expected, ResultListener
from goondan_tasks.contract.messages import ToolCallResult
from tests.unit.goondan_tasks.client.test_pending_call import a_result
from tests.waiting import wait_until

KEYS = Keys("goondan")

#: of waiting that must not come to its end
LONG = 60


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with EmbeddedRedis() as server, connect(server.url) as redis:
        yield redis


class Post:
    """A listener, and who tells it of results; it knows which thread has read each."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.listener = ResultListener(redis, KEYS, lambda _: None)
        self.readers: dict[str, str] = {}
        resolve = self.listener.resolve

        def noted(call_id: str, came: bytes | ToolCallResult, *, is_asked: bool = False) -> None:
            self.readers[call_id] = threading.current_thread().name
            resolve(call_id, came, is_asked=is_asked)

        self.listener.resolve = noted  # type: ignore[method-assign]
        self.listener.start()

    def tell(self, call_id: str) -> None:
        wire = serializer.encode(a_result("ok").to_wire())
        self._redis.publish(KEYS.results(self.listener.producer), call_id.encode() + b" " + wire)

    def expected(self, call_id: str) -> Expected:
        [expected] = self.listener.expect([call_id])
        return expected

    def until_nobody_reads(self) -> None:
        """Wait until the listener's own thread naps."""
        self.tell("nobody's")
        wait_until(lambda: "nobody's" in self.readers and not self.listener._reading.locked())


@pytest.fixture
def post(redis: Redis) -> Iterator[Post]:
    post = Post(redis)
    yield post
    post.listener.close()


@contextmanager
def two_who_wait(post: Post) -> Iterator[tuple[Future[None], Future[None]]]:
    """Let two threads wait: for "mine", by reading, and for "his" meanwhile."""
    post.until_nobody_reads()
    listener, mine, his = post.listener, post.expected("mine"), post.expected("his")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(listener.wait, mine, LONG)
        wait_until(listener._reading.locked)
        second = pool.submit(listener.wait, his, LONG)
        wait_until(lambda: his in listener._blocked)
        yield first, second


def test_waiting_thread_reads_socket_itself(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    post.until_nobody_reads()
    expected = post.expected("mine")
    post.tell("another's")
    post.tell("mine")

    post.listener.wait(expected, LONG)

    assert expected.is_there
    assert post.readers["mine"] == threading.current_thread().name


def test_thread_reads_for_remaining_waiters_after_first_result(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "OWN_SECONDS", LONG)
    with two_who_wait(post) as (first, second):
        post.tell("mine")
        first.result(LONG)
        post.tell("his")
        second.result(LONG)

    assert post.readers["his"] == "goondan-results"


def test_reading_waiter_hands_others_their_results(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "OWN_SECONDS", LONG)
    with two_who_wait(post) as (first, second):
        post.tell("his")
        second.result(LONG)
        assert not first.done()
        post.tell("mine")
        first.result(LONG)

    assert post.readers["his"] == post.readers["mine"] != "goondan-results"


def test_task_that_waits_ends_nap(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    post.until_nobody_reads()
    expected = post.expected("mine")

    async def wait() -> None:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        with post.listener.awaited(), expected.waking(lambda: loop.call_soon_threadsafe(came.set)):
            post.tell("mine")
            await asyncio.wait_for(came.wait(), LONG)

    asyncio.run(wait())
    assert post.readers["mine"] == "goondan-results"


def test_long_wait_is_left_to_thread_checking_server(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "OWN_SECONDS", 0.01)
    post.until_nobody_reads()
    expected = post.expected("mine")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post.listener.wait, expected, LONG)
        wait_until(lambda: expected in post.listener._blocked and post.listener._reading.locked())
        post.tell("mine")
        waiting.result(LONG)

    assert post.readers["mine"] == "goondan-results"


def test_waiting_ends_in_time(post: Post) -> None:
    begun_at = monotonic()
    post.listener.wait(post.expected("mine"), 0.05)
    post.until_nobody_reads()
    post.listener.wait(post.expected("mine"), 0.05)

    assert monotonic() - begun_at < LONG
    assert not post.listener._blocked


def test_subscription_lost_while_reading_is_renewed(
    post: Post, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "OWN_SECONDS", LONG)
    monkeypatch.setattr(results, "PAUSE_SECONDS", 0.01)
    post.until_nobody_reads()
    expected = post.expected("mine")
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(post.listener.wait, expected, LONG)
        wait_until(post.listener._reading.locked)
        redis.client_kill_filter(_type="pubsub")
        wait_until(lambda: expected in post.listener._blocked)

        def is_heard() -> bool:
            post.tell("mine")
            return expected.is_there

        wait_until(is_heard)
        waiting.result(LONG)


def test_glance_ends_with_result(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "GLANCE_SECONDS", LONG)
    post.until_nobody_reads()
    expected = post.expected("mine")
    post.tell("mine")
    post.listener.glance(expected)

    assert expected.is_there
    assert post.readers["mine"] == threading.current_thread().name


def test_glance_at_missing_result_ends_in_time(post: Post) -> None:
    post.until_nobody_reads()
    expected = post.expected("mine")
    post.listener.glance(expected)

    assert not expected.is_there
    assert not post.listener._blocked
    post.tell("mine")
    post.listener.wait(expected, LONG)
    assert expected.is_there


def test_listener_does_not_glance_while_others_wait(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    monkeypatch.setattr(results, "OWN_SECONDS", LONG)
    monkeypatch.setattr(results, "GLANCE_SECONDS", LONG)
    with two_who_wait(post) as (first, second):
        post.listener.glance(post.expected("another's"))
        post.tell("mine")
        post.tell("his")
        first.result(LONG)
        second.result(LONG)


def test_subscription_lost_during_glance_is_renewed(
    post: Post, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "GLANCE_SECONDS", LONG)
    monkeypatch.setattr(results, "PAUSE_SECONDS", 0.01)
    post.until_nobody_reads()
    expected = post.expected("mine")
    with ThreadPoolExecutor() as pool:
        glancing = pool.submit(post.listener.glance, expected)
        wait_until(post.listener._reading.locked)
        redis.client_kill_filter(_type="pubsub")
        glancing.result(LONG)

        def is_heard() -> bool:
            post.tell("mine")
            return expected.is_there

        wait_until(is_heard)


def test_closed_subscription_is_not_read(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    post.listener.close()
    post.listener.wait(post.expected("mine"), 0.05)

    assert post.readers == {}


def test_signal_during_reading_leaves_reading_to_others(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "NAP_SECONDS", LONG)
    post.until_nobody_reads()
    subscription = post.listener._subscription
    assert subscription is not None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(subscription, "read", Mock(side_effect=KeyboardInterrupt))
        post.listener.wait(post.expected("mine"), LONG)

    assert not post.listener._blocked
    post.tell("mine")
    expected = post.expected("mine")
    post.listener.wait(expected, LONG)
    assert expected.is_there
