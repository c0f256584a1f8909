"""The writer, on a real Redis that goes away, freezes and fills up."""

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from broker_config import pipelined_writer as writer_module
from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from broker_config.pipelined_writer import PipelinedWriter
from broker_config.scripts import Script, ScriptCall
from tests.waiting import wait_until

PATIENCE = 60
#: harmless when run twice, as everything that goes by the pipelined writer must be
ADD = Script.of("redis.call('SADD', KEYS[1], ARGV[1]) return redis.call('SCARD', KEYS[1])")


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def redis(server: EmbeddedRedis) -> Iterator[Redis]:
    with connect(server.url) as redis:
        yield redis


@pytest.fixture
def send(redis: Redis) -> Iterator[Callable[[Any], Future[Any]]]:
    writer = PipelinedWriter(redis)
    writer.start()

    def add(member: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        writer.send(ScriptCall(ADD, ["members"], [member]), answer.set_result)
        return answer

    yield add
    writer.stop()


def test_each_sender_gets_its_own_answer(send: Callable[[Any], Future[Any]]) -> None:
    assert [send(member).result(PATIENCE) for member in "abca"] == [1, 2, 3, 3]


def test_all_sends_of_many_threads_are_answered(send: Callable[[Any], Future[Any]], redis: Redis) -> None:
    answers: list[Future[Any]] = []

    def hand_over(start: int) -> None:
        answers.extend(send(member) for member in range(start, start + 200))

    threads = [threading.Thread(target=hand_over, args=(start,)) for start in range(0, 1600, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(answer.result(PATIENCE) for answer in answers) == list(range(1, 1601))


def test_script_that_redis_forgot_is_sent_whole(send: Callable[[Any], Future[Any]], redis: Redis) -> None:
    send("a").result(PATIENCE)
    redis.script_flush()
    assert send("b").result(PATIENCE) == 2


def test_forgotten_script_sent_whole_keeps_its_place(redis: Redis) -> None:
    count: ScriptCall[int] = ScriptCall(Script.of("return redis.call('SCARD', KEYS[1])"), ["members"], [])
    writer, answer = PipelinedWriter(redis, preloaded=[ADD, count.script]), Future[int]()
    writer.start()
    redis.script_flush()
    redis.script_load(count.script.text)
    writer.put_off(ScriptCall(ADD, ["members"], ["a"]), answer.set_result, is_full=True)
    assert writer.ask(count) == answer.result(PATIENCE) == 1
    writer.stop()


def test_must_arrive_script_is_loaded_before_sending(server: EmbeddedRedis, redis: Redis) -> None:
    other = Script.of("return 1")
    writer = PipelinedWriter(redis, preloaded=[ADD])
    writer.start()
    assert redis.script_exists(ADD.sha, other.sha) == [True, False]
    server.process.kill()
    server.process.wait(PATIENCE)
    server.launch()
    answer: Future[Any] = Future()
    writer.send(ScriptCall(other, [], []), answer.set_result)
    assert answer.result(PATIENCE) == 1
    assert redis.script_exists(ADD.sha) == [True]
    writer.stop()


@pytest.mark.parametrize("key", ["a text", "no number"])
def test_failing_script_is_reported_to_asker_and_spares_others(redis: Redis, key: str) -> None:
    redis.set("a text", "x")
    broken = Script.of("if KEYS[1] == 'no number' then return 1 + nil end " + ADD.text)
    writer = PipelinedWriter(redis)
    writer.start()
    refusal, answer = Future[ResponseError](), Future[int]()
    call: ScriptCall[int] = ScriptCall(broken, [key], ["a"])
    writer.send(call, lambda _: None, refused=refusal.set_result)
    with pytest.raises(ResponseError, match=r"WRONGTYPE|attempt to perform arithmetic"):
        writer.ask(call)
    assert isinstance(refusal.result(PATIENCE), ResponseError)
    writer.send(ScriptCall(ADD, ["members"], ["a"]), answer.set_result)
    assert answer.result(PATIENCE) == 1
    writer.stop()


def test_send_on_closed_connection_is_not_reported_under_way(redis: Redis) -> None:
    writer = PipelinedWriter(redis)
    writer.start()
    answers: list[Future[Any]] = [Future(), Future()]
    assert writer.send(ScriptCall(ADD, ["members"], ["a"]), answers[0].set_result)
    assert answers[0].result(PATIENCE) == 1
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
    assert not writer.send(ScriptCall(ADD, ["members"], ["b"]), answers[1].set_result)
    assert answers[1].result(PATIENCE) == 2
    writer.stop()


def test_answer_without_reader_is_read_soon(redis: Redis) -> None:
    writer = PipelinedWriter(redis)
    writer.start()
    answer: Future[Any] = Future()
    writer.send(ScriptCall(ADD, ["members"], ["a"]), answer.set_result, is_urgent=False)
    assert answer.result(PATIENCE) == 1
    writer.stop()


def test_many_answers_without_reader_are_read(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "UNREAD_SECONDS", 10 * PATIENCE)
    writer, answers = PipelinedWriter(redis), list[int]()
    writer.start()
    for number in range(writer_module.MANY):
        writer.send(ScriptCall(ADD, ["members"], [number]), answers.append, is_urgent=False)
    wait_until(lambda: len(answers) == writer_module.MANY)
    writer.stop()


def test_urgent_answer_takes_others_along(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "UNREAD_SECONDS", 10 * PATIENCE)
    writer, answers = PipelinedWriter(redis), list[int]()
    writer.start()
    writer.put_off(ScriptCall(ADD, ["members"], ["slow"]), answers.append)
    writer.put_off(ScriptCall(ADD, ["members"], ["urgent"]), answers.append, is_urgent=True)
    writer.flush()
    wait_until(lambda: answers == [1, 2])
    writer.stop()


def test_sends_under_way_survive_cut_connections(send: Callable[[Any], Future[Any]], redis: Redis) -> None:
    send("a").result(PATIENCE)
    for number in range(5):
        answers = [send(f"{number}-{member}") for member in range(50)]
        redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
        for answer in answers:
            answer.result(PATIENCE)
    assert redis.scard("members") == 251


def test_scripts_sent_while_redis_is_down_wait(
    send: Callable[[Any], Future[Any]], server: EmbeddedRedis, redis: Redis
) -> None:
    send("a").result(PATIENCE)
    server.process.kill()
    server.process.wait(PATIENCE)
    answers = [send(member) for member in "bc"]
    server.launch()
    for answer in answers:
        answer.result(PATIENCE)
    assert redis.smembers("members") == {b"a", b"b", b"c"}


def test_scripts_sent_to_frozen_redis_are_sent_again(
    server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    answer: Future[Any] = Future()
    with Redis.from_url(server.url, socket_timeout=1.0) as redis:
        writer = PipelinedWriter(redis)
        writer.start()
        server.process.send_signal(signal.SIGSTOP)
        writer.send(ScriptCall(ADD, ["members"], ["a"]), answer.set_result)
        wait_until(lambda: "lost the connection to Redis" in caplog.text)
        assert not answer.done()
        server.process.send_signal(signal.SIGCONT)
        assert answer.result(PATIENCE) == 1
        writer.stop()


def test_send_refused_by_full_redis_is_repeated(send: Callable[[Any], Future[Any]], redis: Redis) -> None:
    send("a").result(PATIENCE)
    redis.config_set("maxmemory", 1)
    answer = send("b")
    wait_until(lambda: int(redis.info("stats")["total_error_replies"]) > 0)
    assert not answer.done()
    redis.config_set("maxmemory", 0)
    assert answer.result(PATIENCE) == 2


def test_parser_that_raises_ends_nothing_but_question(redis: Redis) -> None:
    writer = PipelinedWriter(redis)
    writer.start()
    with pytest.raises(ZeroDivisionError):
        writer.ask(ScriptCall(ADD, ["members"], ["a"], lambda count: 1 / (count - 1)))
    assert writer.ask(ScriptCall(ADD, ["members"], ["b"])) == 2
    writer.stop()
