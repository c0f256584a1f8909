"""Scripts that threads run at the same time go to Redis in one trip.

A thread that finds nobody under way goes at once, alone: a lone call pays nothing. Threads that come
meanwhile wait for the next trip, which one of them makes for all. There is no thread of its own and
no delay.
"""

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError, RedisError


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script's text, and the digest that Redis knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """Make a script of its text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(slots=True)
class Errand:
    """One script to be run, and what became of it."""

    script: Script
    keys: Sequence[Any]
    arguments: Sequence[Any]
    answer: Any = None
    turn: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False


class Trips:
    """Runs scripts on one Redis, for any number of threads."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._lock = threading.Lock()
        self._waiting: list[Errand] = []
        self._is_under_way = False

    def run(self, script: Script, keys: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Run one script and return its answer.

        Raises:
            redis.exceptions.RedisError: it failed, or Redis cannot be reached.
        """
        errand = Errand(script, keys, arguments)
        with self._lock:
            self._waiting.append(errand)
            must_go = not self._is_under_way
            self._is_under_way = True
        if not must_go:
            errand.turn.wait()
        if not errand.is_done:
            self._travel()
        if isinstance(errand.answer, RedisError):
            raise errand.answer
        return errand.answer

    def run_all(self, script: Script, errands: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[Any]:
        """Run one script many times in one trip, and return the answers in order."""
        answers = self._make([Errand(script, keys, arguments) for keys, arguments in errands])
        for answer in answers:
            if isinstance(answer, RedisError):
                raise answer
        return answers

    def _travel(self) -> None:
        with self._lock:
            errands, self._waiting = self._waiting, []
        try:
            answers: Sequence[Any] = self._make(errands)
        except RedisError as error:
            answers = [error] * len(errands)
        for errand, answer in zip(errands, answers, strict=True):
            errand.answer = answer
            errand.is_done = True
            errand.turn.set()
        with self._lock:
            self._is_under_way = bool(self._waiting)
            if self._waiting:
                self._waiting[0].turn.set()  # its thread makes the next trip

    def _make(self, errands: Sequence[Errand]) -> list[Any]:
        answers = self._send(errands)
        unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            for text in {errands[number].script.text for number in unknown}:
                self._redis.script_load(text)
            for number, answer in zip(unknown, self._send([errands[n] for n in unknown]), strict=True):
                answers[number] = answer
        return answers

    def _send(self, errands: Sequence[Errand]) -> list[Any]:
        with self._redis.pipeline(transaction=False) as pipe:
            for errand in errands:
                pipe.evalsha(errand.script.sha, len(errand.keys), *errand.keys, *errand.arguments)
            return pipe.execute(raise_on_error=False)
