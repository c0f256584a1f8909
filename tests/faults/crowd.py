"""Producers that submit numbered calls and wait for each, many at a time."""

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.messages import ToolCallResult

AGENT = "tester"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A call of ``tests/bundles/load``; its number is its ``toolCallId``."""

    number: int
    tool: str
    args: dict[str, Any]

    @property
    def may_run_again(self) -> bool:
        """Whether its export is idempotent."""
        return self.tool.startswith("again__")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A producer was told that the broker is away; times are seconds since the epoch."""

    of: Literal["submit", "result"]
    asked_at: float
    told_at: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What a producer got for a call, and what it was refused before that."""

    call: NumberedCall
    id: str
    result: ToolCallResult
    refusals: tuple[Refusal, ...] = ()

    @property
    def code(self) -> str:
        """The error's code, or ``ok``."""
        return "ok" if self.result.error is None else self.result.error.code


class Crowd:
    """``size`` threads on one client. Each takes the next call when it has the result of its last.

    When the broker is away they try again with the same identity, as a producer should.
    """

    def __init__(self, client: Client, size: int, patience: float) -> None:
        self._client = client
        self._size = size
        self._patience = patience
        self._lock = threading.Lock()
        self._answers: list[Answer] = []
        #: several crowds may use one stack
        self._turn_id = f"turn-of-{uuid.uuid4().hex}"

    @property
    def answered(self) -> int:
        """How many calls have their result."""
        return len(self._answers)

    def run(self, calls: Iterable[NumberedCall]) -> list[Answer]:
        """Submit all of ``calls`` and return their answers.

        Raises:
            WaitTimeout: a call has no result within the crowd's patience: it is lost.
        """
        source = iter(calls)
        with ThreadPoolExecutor(self._size, "crowd") as threads:
            for work in [threads.submit(self._work, source) for _ in range(self._size)]:
                work.result()
        return self._answers

    @contextmanager
    def at_work(self, calls: Iterable[NumberedCall]) -> Iterator[list[Answer]]:
        """Do the same beside a ``with`` block, with whose end no further call is submitted."""
        is_over = threading.Event()
        until_the_end = itertools.takewhile(lambda _: not is_over.is_set(), calls)
        with ThreadPoolExecutor(1, "crowd-leader") as leader:
            running = leader.submit(self.run, until_the_end)
            try:
                yield self._answers
            finally:
                is_over.set()
            running.result()

    def _work(self, calls: Iterator[NumberedCall]) -> None:
        while (call := self._next(calls)) is not None:
            answer = self._answer(call)
            with self._lock:
                self._answers.append(answer)

    def _next(self, calls: Iterator[NumberedCall]) -> NumberedCall | None:
        with self._lock:
            return next(calls, None)

    def _answer(self, call: NumberedCall) -> Answer:
        end = time.monotonic() + self._patience
        refusals: list[Refusal] = []

        def insist(of: Literal["submit", "result"], ask: Callable[[], T]) -> T:
            while True:
                asked_at = time.time()
                try:
                    return ask()
                except BrokerUnreachableError:
                    refusals.append(Refusal(of, asked_at, time.time()))
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.1)

        pending = insist("submit", lambda: self._submit(call))
        result = insist("result", lambda: pending.result(max(1.0, end - time.monotonic())))
        return Answer(call, pending.id, result, tuple(refusals))

    def _submit(self, call: NumberedCall) -> PendingCall:
        return self._client.submit(
            AGENT, call.tool, call.args, tool_call_id=f"call-{call.number}", turn_id=self._turn_id
        )


def numbered(tools: Iterable[str], args: Callable[[int], dict[str, Any]]) -> Iterator[NumberedCall]:
    """Number calls of ``tools``, from 0."""
    for number, tool in enumerate(tools):
        yield NumberedCall(number, tool, {"number": number, **args(number)})
