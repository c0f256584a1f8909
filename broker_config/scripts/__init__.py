"""Lua scripts: each in a file of its own that says what it takes and returns."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Errand:
    """One script to be run on certain keys."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]

    @property
    def command(self) -> tuple[Any, ...]:
        """The command for a Redis that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    @property
    def full_command(self) -> tuple[Any, ...]:
        """The command for a Redis that does not, and will from then on."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


@dataclass(frozen=True, slots=True)
class Companion:
    """What claims calls in the very trip that reserves their messages (``reserve.lua``).

    ``lua`` defines ``claim_on_reserve(queue, message, tag, argument)``, which returns a claim, or false, and
    ``end_claims()``, which is called behind the last claim.
    """

    lua: str = "local function claim_on_reserve() return false end local function end_claims() end"
    argument: str = ""


def run_errand(redis: Redis, errand: Errand) -> Any:
    """Run one script and return its answer.

    Raises:
        redis.exceptions.RedisError: it failed, or Redis cannot be reached.
    """
    return run_errands(redis, [errand])[0]


def run_errands(redis: Redis, errands: Sequence[Errand]) -> list[Any]:
    """Run scripts in one trip and return their answers in order; raises as :func:`run_errand` does.

    They are sent again after a lost connection, as the client's retry policy says: they must do no harm
    when they are run twice.
    """
    pool = redis.connection_pool
    connection: Connection = pool.get_connection()
    try:
        return _exchange_with_retry(connection, errands)
    finally:
        pool.release(connection)


class ScriptConnection:
    """A connection that is kept for scripts: the pool takes as long to lend one as the trip takes.

    One thread uses it at a time; others, and a forked child, take one from the pool.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._in_use = threading.Lock()
        self._connection: Connection | None = None
        self._process = os.getpid()

    def run(self, errands: Sequence[Errand]) -> list[Any]:
        """Do what :func:`run_errands` does."""
        if self._process != os.getpid() or not self._in_use.acquire(blocking=False):
            return run_errands(self._redis, errands)
        is_in_order = False
        try:
            connection = self._connection = self._connection or self._redis.connection_pool.get_connection()
            connection.connect()  # does nothing if it is; else an outage would be waited for twice below
            answers = _exchange_with_retry(connection, errands)
            is_in_order = True
            return answers
        finally:
            if not is_in_order and self._connection is not None:
                self._connection.disconnect()  # an answer may be left unread
            self._in_use.release()


def _exchange_with_retry(connection: Connection, errands: Sequence[Errand]) -> list[Any]:
    return connection.retry.call_with_retry(
        lambda: exchange(connection, errands), lambda error: connection.disconnect()
    )


def exchange(connection: Connection, errands: Sequence[Errand]) -> list[Any]:
    """Run scripts in one trip, once; redis-py's pipeline does the same in twice the time.

    Raises:
        redis.exceptions.RedisError: one failed, or Redis cannot be reached; the connection may be of no use.
    """
    answers = _send(connection, [errand.command for errand in errands])
    unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = _send(connection, [errands[number].full_command for number in unknown])
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
    """Return commands as Redis reads them; redis-py looks at each argument once more, in thrice the time."""
    return b"".join(map(hiredis.pack_command, commands))


def answer_of(connection: Connection) -> Any:
    """Read one answer; one that says what was wrong is returned, too."""
    try:
        return connection.read_response()
    except ResponseError as error:
        return error
