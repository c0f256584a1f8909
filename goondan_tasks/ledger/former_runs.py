"""The runs of a call that have ended without a result, as its record keeps them (``former.lua``)."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.run_lines import RunLines

#: how many characters of an error's code are kept
LONGEST_ENDING = 100

#: how many characters of a traceback are kept; each failed call takes so much memory in Redis
LONGEST_TRACEBACK = 2_000


@dataclass(frozen=True, slots=True)
class FormerRun:
    """A run that has ended without a result (``former.lua``). Times are milliseconds, Redis time."""

    attempt: int
    claimed_at: int
    #: if its worker died, when that was last seen
    ended_at: int
    #: ``died``, ``unstarted`` (its worker died before it had started), ``overran`` (it ran beyond its
    #: limit, and its worker could not end it), ``released``, or an error's code
    ending: str
    worker: str

    @property
    def has_started(self) -> bool:
        return self.ending != "unstarted"

    @property
    def has_died(self) -> bool:
        """Whether its worker died."""
        return self.ending in {"died", "unstarted"}

    @classmethod
    def read(cls, field: bytes) -> tuple["FormerRun", ...]:
        """Read the field of a record; damaged lines are left out."""
        found = []
        for line in field.decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                attempt, claimed_at, ended_at, ending, worker = line.split(" ", 4)
                found.append(cls(int(attempt), int(claimed_at), int(ended_at), ending, worker))
        return tuple(found)


def lines_of_runs(fields: Mapping[bytes, bytes]) -> dict[int, str]:
    """Return the log lines in a record by the number of the attempt (``failures.lua``)."""
    numbers = {name.removeprefix(b"log:"): text for name, text in fields.items() if name.startswith(b"log:")}
    return {
        int(number): text.decode(errors="replace") for number, text in numbers.items() if number.isdigit()
    }


def failure_of(attempt: int, lines: RunLines | None, traceback: str | None = None) -> bytes:
    """Return what is kept of a failed run with its call; it is no part of results (``failures.lua``).

    The traceback is kept once the call has ended.
    """
    text = "" if lines is None or lines.are_empty else lines.text()
    if not (text or traceback):
        return b""
    end = (traceback or "")[-LONGEST_TRACEBACK:].encode(errors="backslashreplace").decode()
    return serializer.encode([attempt, end, text])


def former_ending(code: str) -> str:
    """Return an error's code as the ending of a :class:`FormerRun`."""
    return "_".join(code.split())[:LONGEST_ENDING] or ToolError.code
