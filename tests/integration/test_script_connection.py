"""The connection that is kept for scripts, on a real Redis."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock, patch

import pytest
from redis import Redis

import broker_config.scripts
from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.scripts import Script, ScriptCall, ScriptConnection
from tests.waiting import wait_until

ECHO = Script.of("return ARGV[1]")


def echo(text: str) -> list[ScriptCall[object]]:
    return [ScriptCall(ECHO, [], [text])]


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with EmbeddedRedis() as server, connect(server.url) as redis:
        yield redis


@pytest.fixture
def scripts(redis: Redis) -> ScriptConnection:
    scripts = ScriptConnection(redis)
    assert scripts.run(echo("first")) == [b"first"]
    return scripts


def test_connection_that_is_lost_is_made_again(scripts: ScriptConnection, redis: Redis) -> None:
    for text in ("second", "third"):
        redis.client_kill_filter(_type="normal")
        assert scripts.run(echo(text)) == [text.encode()]


def test_unread_answer_after_interrupt_is_not_next_answer(
    scripts: ScriptConnection,
) -> None:
    interrupted = patch.object(broker_config.scripts, "answer_of", side_effect=KeyboardInterrupt)
    with interrupted, pytest.raises(KeyboardInterrupt):
        scripts.run(echo("unread"))
    assert scripts.run(echo("next")) == [b"next"]


def test_scripts_are_sent_before_meanwhile_function_runs(scripts: ScriptConnection, redis: Redis) -> None:
    write: ScriptCall[object] = ScriptCall(Script.of("return redis.call('SET', KEYS[1], 'x')"), ["sent"], [])
    assert scripts.run([write]) == [b"OK"]  # from now on Redis knows it
    redis.delete("sent")

    def meanwhile() -> None:
        wait_until(lambda: redis.get("sent") == b"x")

    assert scripts.run([write], meanwhile) == [b"OK"]


def test_scripts_whose_answers_are_lost_meanwhile_run_again(scripts: ScriptConnection) -> None:
    lost, kept = iter([True, False]), scripts._connection
    assert kept is not None

    def meanwhile() -> None:
        if next(lost):
            kept.disconnect()  # type: ignore[no-untyped-call]

    assert scripts.run(echo("again"), meanwhile) == [b"again"]
    assert list(lost) == []


def test_interruption_meanwhile_leaves_no_answer_behind(scripts: ScriptConnection) -> None:
    with pytest.raises(KeyboardInterrupt):
        scripts.run(echo("unread"), Mock(side_effect=KeyboardInterrupt))
    assert scripts.run(echo("next")) == [b"next"]


def test_threads_run_scripts_beside_one_another(scripts: ScriptConnection) -> None:
    texts = [str(number) for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda text: scripts.run(echo(text)), texts))
    assert answers == [[text.encode()] for text in texts]


def test_forked_child_leaves_connection_alone(
    scripts: ScriptConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = scripts._connection
    monkeypatch.setattr(scripts, "_process", -1)  # as a child sees it
    with patch.object(kept, "send_packed_command", side_effect=AssertionError):
        assert scripts.run(echo("child's")) == [b"child's"]
