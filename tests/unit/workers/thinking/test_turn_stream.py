"""What is told of a Turn while its model answers."""

import asyncio
import threading
from typing import Any

import fakeredis
import pytest

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.contract.redaction import KnownSecrets
from tests.waiting import wait_until
from workers.thinking import turn_stream
from workers.thinking.turn_stream import Deltas, TurnStream

SECRET = "sk-canary-of-a-stream"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    known = KnownSecrets()
    known.add(SECRET)
    monkeypatch.setattr(turn_stream, "KNOWN_SECRETS", known)
    return SECRET


class SlowRedis(fakeredis.FakeRedis):
    """Keeps each write until it is let through."""

    is_writing = threading.Event()
    gate = threading.Event()

    def xadd(self, *args: Any, **options: Any) -> Any:
        self.is_writing.set()
        assert self.gate.wait(30)
        return super().xadd(*args, **options)


def text_in(redis: fakeredis.FakeRedis, keys: Keys) -> str:
    rows: Any = redis.xrange(keys.turn_stream("e"))
    entries = [one for _, fields in rows for one in serializer.decode(fields[b"entries"])]
    return "".join(one.get("text", "") for one in entries)


def test_pieces_arriving_during_last_write_are_streamed() -> None:
    redis, keys = SlowRedis(), Keys()
    redis.gate.set()
    redis.xadd(keys.turn_stream("e"), {"entries": b"[]"})

    async def answer() -> None:
        async with TurnStream(redis, keys, "e", True).gathering(0) as deltas:
            redis.gate.clear()
            redis.is_writing.clear()
            deltas.add("text", "one ")
            await asyncio.to_thread(wait_until, redis.is_writing.is_set)
            deltas.add("text", "two")
            asyncio.get_running_loop().call_soon(redis.gate.set)  # once the answer has ended

    asyncio.run(answer())
    assert text_in(redis, keys) == "one two"


def test_secret_that_comes_in_pieces_is_hidden(secret: str) -> None:
    redis, keys = fakeredis.FakeRedis(), Keys()
    redis.xadd(keys.turn_stream("e"), {"entries": b"[]"})
    stream, deltas = TurnStream(redis, keys, "e", True), Deltas(0)

    async def tell() -> None:
        for piece in ("It is", " ", *secret, ". A sk", "y ends in s"):
            deltas.add("text", piece)
            await stream.tell(*deltas.take())
        await stream.tell(*deltas.take(is_over=True))

    asyncio.run(tell())
    assert text_in(redis, keys) == "It is ***. A sky ends in s"


def test_possible_secret_start_is_streamed_before_another_kind(secret: str) -> None:
    deltas = Deltas(0)
    deltas.add("reasoning", "is")
    assert [one.to_wire()["text"] for one in deltas.take()] == ["i"]
    deltas.add("text", "it")
    assert [one.to_wire()["text"] for one in deltas.take()] == ["s", "it"]
    assert deltas.take(is_over=True) == []
