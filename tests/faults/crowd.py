"""Producers that submit numbered calls and wait for each, many at a time."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.messages import ToolCallResult

AGENT = "tester"


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A call of ``tests/bundles/proving-ground``; its number is its ``toolCallId``."""

    number: int
    tool: str
    args: dict[str, Any]

    @property
    def may_run_again(self) -> bool:
        """Whether its export is idempotent."""
        return self.tool.startswith("again__")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a producer got for a call. ``refused`` are the seconds that each unanswered attempt took."""

    call: NumberedCall
    id: str
    result: ToolCallResult
    refused: tuple[float, ...] = ()

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
        self.answered = 0
        self._lock = threading.Lock()

    def run(self, calls: Iterable[NumberedCall]) -> list[Answer]:
        """Submit all of ``calls`` and return their answers, in order.

        Raises:
            WaitTimeout: a call has no result within the crowd's patience: it is lost.
        """
        with ThreadPoolExecutor(self._size, "crowd") as threads:
            return list(threads.map(self._answer, calls))

    def _answer(self, call: NumberedCall) -> Answer:
        end = time.monotonic() + self._patience
        refused: list[float] = []

        def insist(ask: Callable[[], Any]) -> Any:
            while True:
                begun = time.monotonic()
                try:
                    return ask()
                except BrokerUnreachableError:
                    refused.append(time.monotonic() - begun)
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.1)

        pending = insist(lambda: self._submit(call))
        result = insist(lambda: pending.result(max(1.0, end - time.monotonic())))
        with self._lock:
            self.answered += 1
        return Answer(call, pending.id, result, tuple(refused))

    def _submit(self, call: NumberedCall) -> PendingCall:
        return self._client.submit(
            AGENT, call.tool, call.args, tool_call_id=f"call-{call.number}", turn_id="turn-of-the-crowd"
        )


def numbered(tools: Iterable[str], args: Callable[[int], dict[str, Any]]) -> Iterator[NumberedCall]:
    """Number calls of ``tools``, from 0."""
    for number, tool in enumerate(tools):
        yield NumberedCall(number, tool, {"number": number, **args(number)})
