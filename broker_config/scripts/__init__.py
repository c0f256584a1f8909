"""Lua scripts: each in a file of its own that says what it takes and returns."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError, RedisError


def read_script(name: str) -> str:
    """Return the text of a script of this folder."""
    return (files(__package__) / f"{name}.lua").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script's text, and the digest that Redis knows it by."""

    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> "Script":
        """Make a script of its text."""
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


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


def run_errand(redis: Redis, errand: Errand) -> Any:
    """Run one script and return its answer.

    Raises:
        redis.exceptions.RedisError: it failed, or Redis cannot be reached.
    """
    return run_errands(redis, [errand])[0]


def run_errands(redis: Redis, errands: Sequence[Errand]) -> list[Any]:
    """Run scripts in one trip and return their answers in order; raises as :func:`run_errand` does."""
    answers = _send(redis, [errand.command for errand in errands])
    unknown = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = _send(redis, [errands[number].full_command for number in unknown])
        for number, answer in zip(unknown, again, strict=True):
            answers[number] = answer
    for answer in answers:
        if isinstance(answer, RedisError):
            raise answer
    return answers


def _send(redis: Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    with redis.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)  # type: ignore[no-untyped-call]
        return pipe.execute(raise_on_error=False)
