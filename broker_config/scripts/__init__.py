"""Runs Lua scripts. The header of each file describes its keys, arguments and answer."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, ClassVar, Generic, TypeVar, cast

import hiredis
from redis import Redis
from redis.connection import Connection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from broker_config.confirmation import Confirmation, NotConfirmedError, counted
from broker_config.refusals import RefusedError, is_script_fault

_FOLDER = files("broker_config") / "scripts"


@dataclass(frozen=True, slots=True)
class Script:
    """The text of a Lua script, and its digest, by which Redis knows it."""

    text: str
    sha: str
    #: the replicas that must have its writes before its answer counts
    confirmation: Confirmation | None = None

    @classmethod
    def of(cls, text: str) -> "Script":
        """Make a script from its text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())

    @classmethod
    def read(cls, folder: Traversable, *names: str) -> "Script":
        """Read a script that consists of the files ``<name>.lua`` of a folder, or of this package."""
        return cls.of("\n".join(_text_of(cast("Hashable", folder), name) for name in names))


@functools.cache
def _text_of(folder: Any, name: str) -> str:
    """Read a file once: a process may have many clients, and each has all scripts."""
    own = folder / f"{name}.lua"
    return (own if own.is_file() else _FOLDER / f"{name}.lua").read_text("utf-8")


T = TypeVar("T")


def unparsed(answer: Any) -> Any:
    """Return an answer as it is."""
    return answer


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """A script with its keys and arguments, and a parser of its answer."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]
    parse: Callable[[Any], T] = unparsed
    #: a :class:`~broker_config.confirmation.Barrier` has something here
    ends: ClassVar[None] = None

    def run(self, redis: Redis) -> T:
        """Run the script and return its parsed answer.

        Raises:
            redis.exceptions.RedisError: it failed, or Redis cannot be reached.
            Exception: what ``parse`` raises.
        """
        answer: T = run_script_calls(redis, [self])[0]
        return answer

    @property
    def confirmation(self) -> Confirmation | None:
        """The script's."""
        return self.script.confirmation

    @property
    def command(self) -> tuple[Any, ...]:
        """The command for a Redis that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.arguments)

    @property
    def full_command(self) -> tuple[Any, ...]:
        """The command for a Redis that does not know the script; it loads it, too."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.arguments)


@dataclass(frozen=True, slots=True)
class ClaimOnReserve:
    """Lua code that claims calls while their messages are reserved (``reserve.lua``).

    ``lua`` defines ``claim_on_reserve(queue, message, tag, argument, terms)``, which returns a claim or
    false, and ``end_claims()``, which is called after the last claim and may return what is called last.
    ``terms`` holds an argument for each queue: a worker may serve hundreds of queues, and a reservation sends
    only those of the ones it reads.
    """

    lua: str = "local function claim_on_reserve() return false end local function end_claims() end"
    argument: str = ""
    terms: Mapping[str, str] = field(default_factory=dict)


def run_script_calls(
    redis: Redis, script_calls: Sequence[ScriptCall[Any]], *, returns_faults: bool = False
) -> list[Any]:
    """Run scripts in one round trip and return their parsed answers. Raises as :meth:`ScriptCall.run` does.

    After a lost connection they are sent again, by the client's retry policy, so they must be safe to run
    twice. With ``returns_faults``, the error of a script that fails because of its own keys is its answer.

    Raises:
        NotConfirmedError: the scripts have run, and too few replicas have confirmed that.
    """
    pool = redis.connection_pool
    connection: Connection = pool.get_connection()
    try:
        answers = _exchange_with_retry(connection, script_calls, returns_faults=returns_faults)
    finally:
        pool.release(connection)
    return _parsed(script_calls, answers)


class ScriptConnection:
    """A connection reserved for scripts: taking one from the pool takes as long as the round trip.

    One thread uses it at a time. Other threads, and forked children, use the pool.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._in_use = threading.Lock()
        self._connection: Connection | None = None
        self._process = os.getpid()

    def run(
        self, script_calls: Sequence[ScriptCall[Any]], meanwhile: Callable[[], object] | None = None
    ) -> list[Any]:
        """Run scripts as :func:`run_script_calls` does.

        What happens ``meanwhile`` is done once they are sent, before their answers are read.
        """
        if self._process != os.getpid() or not self._in_use.acquire(blocking=False):
            return run_script_calls(self._redis, script_calls)
        all_read = False
        try:
            connection = self._connection = self._connection or self._redis.connection_pool.get_connection()
            if connection.should_reconnect():  # its server is no longer the master
                connection.disconnect()
            connection.connect()  # if need be; else _exchange_with_retry would wait for an outage twice
            answers = _exchange_with_retry(connection, script_calls, meanwhile)
            all_read = True
        finally:
            if not all_read and self._connection is not None:
                self._connection.disconnect()
            self._in_use.release()
        return _parsed(script_calls, answers)


def _parsed(script_calls: Sequence[ScriptCall[Any]], answers: Sequence[Any]) -> list[Any]:
    return [
        answer if isinstance(answer, RedisError) else script_call.parse(answer)
        for script_call, answer in zip(script_calls, answers, strict=True)
    ]


def _exchange_with_retry(
    connection: Connection,
    script_calls: Sequence[ScriptCall[Any]],
    meanwhile: Callable[[], object] | None = None,
    *,
    returns_faults: bool = False,
) -> list[Any]:
    return connection.retry.call_with_retry(
        lambda: exchange(connection, script_calls, meanwhile, returns_faults=returns_faults),
        lambda error: connection.disconnect(),
    )


def exchange(
    connection: Connection,
    script_calls: Sequence[ScriptCall[Any]],
    meanwhile: Callable[[], object] | None = None,
    *,
    returns_faults: bool = False,
) -> list[Any]:
    """Run scripts in one round trip, once, in half the time of redis-py's pipeline.

    Raises:
        redis.exceptions.RedisError: one failed, or Redis cannot be reached; the connection may be unusable.
        NotConfirmedError: all have run, and too few replicas have confirmed it.
    """
    confirmation = next((one.confirmation for one in script_calls if one.confirmation is not None), None)
    barrier = [] if confirmation is None else [one.command for one in confirmation.barrier]
    sent = len(script_calls)
    commands = [*(script_call.command for script_call in script_calls), *barrier]
    answers = send_all(connection, commands, meanwhile=meanwhile)
    answers, confirmed = answers[:sent], answers[sent:]
    unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = send_all(connection, [*(script_calls[number].full_command for number in unknown), *barrier])
        for number, answer in zip(unknown, again, strict=False):
            answers[number] = answer
        confirmed = again[len(unknown) :]
    for answer in answers:
        if isinstance(answer, RedisError) and not (returns_faults and is_script_fault(answer)):
            raise answer
    if confirmation is not None and (fault := confirmation.fault(*confirmed)) is not None:
        _raise_if_it_counts(fault, script_calls, answers)
    return answers


def _raise_if_it_counts(
    fault: RedisError, script_calls: Sequence[ScriptCall[Any]], answers: list[Any]
) -> None:
    if isinstance(fault, NotConfirmedError):
        fault.answers = _parsed(script_calls, answers)
    if any(counted(script_call, None, fault) is fault for script_call in script_calls):
        raise fault


def send_all(
    connection: Connection,
    commands: Sequence[tuple[Any, ...]],
    *,
    check_health: bool = True,
    meanwhile: Callable[[], object] | None = None,
) -> list[Any]:
    """Send commands in one round trip and return their answers as :func:`answer_of` does."""
    connection.send_packed_command([packet(commands)], check_health=check_health)
    if meanwhile is not None:
        meanwhile()
    return [answer_of(connection) for _ in commands]


def packet(commands: Iterable[tuple[Any, ...]]) -> bytes:
    """Return commands in Redis's protocol, in a third of the time that redis-py takes."""
    return b"".join(map(hiredis.pack_command, commands))


def answer_of(connection: Connection) -> Any:
    """Read one answer; an error that Redis answers with is returned, not raised.

    After any other error the caller must close the connection.
    """
    try:
        return connection.read_response(disconnect_on_error=False)
    except (ResponseError, RefusedError) as error:
        return error
