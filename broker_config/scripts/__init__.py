"""Lua scripts: each in a file of its own that says what it takes and returns."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from typing import Any, Generic, TypeVar

import hiredis
from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script's text, and the digest that Redis knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """Make a script of its text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def read(cls, folder: Traversable, *names: str) -> "Script":
        """Read the script that the files ``<name>.lua`` of a folder make together."""
        return cls.of("\n".join((folder / f"{name}.lua").read_text("utf-8") for name in names))


T = TypeVar("T")


def _as_it_came(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """One script to be run on certain keys, and what reads its answer."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]
    parse: Callable[[Any], T] = _as_it_came

    def run(self, redis: Redis) -> T:
        """Run the script and return its answer, as ``parse`` reads it.

        Raises:
            redis.exceptions.RedisError: it failed, or Redis cannot be reached.
            Exception: what ``parse`` raises.
        """
        answer: T = run_script_calls(redis, [self])[0]
        return answer

    @property
    def command(self) -> tuple[Any, ...]:
        """The command for a Redis that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    @property
    def full_command(self) -> tuple[Any, ...]:
        """The command for a Redis that does not, and will from then on."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


@dataclass(frozen=True, slots=True)
class ClaimOnReserve:
    """What claims calls in the very trip that reserves their messages (``reserve.lua``).

    ``lua`` defines ``claim_on_reserve(queue, message, tag, argument, terms)``, which returns a claim or
    false, and ``end_claims()``, which is called after the last claim. ``terms`` holds an argument for each
    queue: a worker may serve hundreds of queues, and a reservation sends only those of the ones it reads.
    """

    lua: str = "local function claim_on_reserve() return false end local function end_claims() end"
    argument: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)


def run_script_calls(redis: Redis, script_calls: Sequence[ScriptCall[Any]]) -> list[Any]:
    """Run scripts in one trip and return their answers in order; raises as :meth:`ScriptCall.run` does.

    They are sent again after a lost connection, as the client's retry policy says: they must do no harm
    when they are run twice.
    """
    pool = redis.connection_pool
    connection: Connection = pool.get_connection()
    try:
        answers = _exchange_with_retry(connection, script_calls)
    finally:
        pool.release(connection)
    return _parsed(script_calls, answers)


class ScriptConnection:
    """A connection that is kept for scripts: the pool takes as long to lend one as the trip takes.

    One thread uses it at a time; others, and a forked child, take one from the pool.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._in_use = threading.Lock()
        self._connection: Connection | None = None
        self._process = os.getpid()

    def run(self, script_calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        """Do what :func:`run_script_calls` does."""
        if self._process != os.getpid() or not self._in_use.acquire(blocking=False):
            return run_script_calls(self._redis, script_calls)
        is_in_order = False
        try:
            connection = self._connection = self._connection or self._redis.connection_pool.get_connection()
            connection.connect()  # does nothing if it is; else an outage would be waited for twice below
            answers = _exchange_with_retry(connection, script_calls)
            is_in_order = True
        finally:
            if not is_in_order and self._connection is not None:
                self._connection.disconnect()  # an answer may be left unread
            self._in_use.release()
        return _parsed(script_calls, answers)


def _parsed(script_calls: Sequence[ScriptCall[Any]], answers: Sequence[Any]) -> list[Any]:
    return [script_call.parse(answer) for script_call, answer in zip(script_calls, answers, strict=True)]


def _exchange_with_retry(connection: Connection, script_calls: Sequence[ScriptCall[Any]]) -> list[Any]:
    return connection.retry.call_with_retry(
        lambda: exchange(connection, script_calls), lambda error: connection.disconnect()
    )


def exchange(connection: Connection, script_calls: Sequence[ScriptCall[Any]]) -> list[Any]:
    """Run scripts in one trip, once; redis-py's pipeline does the same in twice the time.

    Raises:
        redis.exceptions.RedisError: one failed, or Redis cannot be reached; the connection may be of no use.
    """
    answers = _send(connection, [script_call.command for script_call in script_calls])
    unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = _send(connection, [script_calls[number].full_command for number in unknown])
        for number, answer in zip(unknown, again, strict=True):
            answers[number] = answer
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer
    return answers


def _send(connection: Connection, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    connection.send_packed_command([packet(commands)])
    return [answer_of(connection) for _ in commands]


def packet(commands: Iterable[tuple[Any, ...]]) -> bytes:
    """Return commands as Redis reads them; redis-py's own packing takes three times as long."""
    return b"".join(map(hiredis.pack_command, commands))


def answer_of(connection: Connection) -> Any:
    """Read one answer; one that says what was wrong is returned, too."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
