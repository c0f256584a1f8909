"""Acts on all calls that a filter selects: counted first, then done in batches, each within its own trips."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from pydantic import Field

from goondan_tasks.client.arguments import MOST
from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.ledger.record import CallRecord

BulkAct = Literal["replay", "drop", "cancel"]
ACTS: tuple[BulkAct, ...] = ("replay", "drop", "cancel")
#: how many calls one batch has
BATCH = 200
#: how many of those that failed are named
_NAMED = 20


class CountOfTool(WireModel):
    """How many of the selected calls are of an agent's tool."""

    agent: str
    tool: str
    calls: int


class BulkFault(WireModel):
    """A call with which it could not be done, and why."""

    id: str
    code: str
    message: str


class BulkResult(WireModel):
    """What an act on many calls has done, or would do."""

    act: BulkAct
    #: how many calls it was to be done with, and those by agent and tool, the most first
    selected: int
    tools: tuple[CountOfTool, ...]
    #: the earliest and the latest moment (ms, Redis time) of these calls: what comes later is left alone
    between: tuple[int, int]
    #: how many of these may do twice what they have done: they are not known to be idempotent
    not_idempotent: int
    #: how many calls it was done with; the others had changed meanwhile, or failed
    done: int = 0
    #: of replays: the new calls' ids by the old ones'
    replays: dict[str, str] = Field(default_factory=dict)
    failed: int = 0
    #: some of those that failed
    faults: tuple[BulkFault, ...] = ()
    #: whether it stopped at its limit: the same act again goes on
    has_more: bool = False

    def __len__(self) -> int:
        """Return how many calls it was done with."""
        return self.done


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where an act stops: after so many calls, and after so many seconds; ``None`` is no bound."""

    calls: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class BulkRun:
    """One act on many calls."""

    act: BulkAct
    #: does it with a batch; returns the ids of those it was done with, and of replays the new ids
    do: Callable[[Sequence[CallRecord]], dict[str, str]]
    #: the earliest and the latest moment of these calls, in ms
    between: tuple[float, float]
    watch: Callable[[int], object] | None = None
    _tools: Counter[tuple[str, str]] = field(default_factory=Counter)
    _done: dict[str, str] = field(default_factory=dict)
    _faults: list[BulkFault] = field(default_factory=list)
    _failed: int = 0
    _not_idempotent: int = 0
    _has_more: bool = False

    def count(self, records: Iterable[CallRecord]) -> BulkResult:
        """Say what would be done."""
        for record in records:
            self._note(record)
        return self._result()

    def carry_out(self, records: Iterator[CallRecord], bounds: Bounds) -> BulkResult:
        """Do it with all, or until the bounds are reached.

        An error of one call concerns it alone. One of the broker ends the act: what is done is done, and the
        same act again does the rest.
        """
        begun, left = time.monotonic(), bounds.calls
        while batch := list(islice(records, BATCH if left is None else min(BATCH, left))):
            for record in batch:
                self._note(record)
            self._done |= self._do(batch)
            if self.watch is not None:
                self.watch(len(self._done))
            left = None if left is None else left - len(batch)
            if bounds.seconds is not None and time.monotonic() - begun >= bounds.seconds:
                break
        self._has_more = next(records, None) is not None
        return self._result()

    def _note(self, record: CallRecord) -> None:
        self._tools[record.call.agent_name, record.call.tool_name] += 1
        self._not_idempotent += record.is_idempotent is not True

    def _do(self, batch: Sequence[CallRecord]) -> dict[str, str]:
        try:
            return self.do(batch)
        except BrokerUnreachableError:
            raise
        except GoondanError as error:
            if len(batch) > 1:  # by themselves, so that one of them keeps no other
                return {old: new for one in batch for old, new in self._do([one]).items()}
            self._failed += 1
            if len(self._faults) < _NAMED:
                self._faults.append(BulkFault(id=batch[0].id, code=error.code, message=str(error)))
            return {}

    def _result(self) -> BulkResult:
        tools = [
            CountOfTool(agent=agent, tool=tool, calls=calls)
            for (agent, tool), calls in self._tools.most_common()
        ]
        return BulkResult(
            act=self.act,
            selected=self._tools.total(),
            tools=tuple(tools),
            between=tuple(int(max(0, min(moment, MOST))) for moment in self.between),
            not_idempotent=self._not_idempotent,
            done=len(self._done),
            replays=self._done if self.act == "replay" else {},
            failed=self._failed,
            faults=tuple(self._faults),
            has_more=self._has_more,
        )
