"""The reckoning after a scenario: what was lost, doubled or late, from the handlers' own lines."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from tests.faults.crowd import Answer
from tests.faults.fleet import Death
from tests.faults.handler_log import HandlerRun

UNKNOWN = "E_TOOL_OUTCOME_UNKNOWN"
POISONED = "E_TOOL_POISONED"

#: The mark "started" is written just before the handler, whose first act is its line. A kill may fall between
#: the two, in as many calls as the worker runs at once: these tests' workers have no more places.
MOST_STARTING = 8

Runs = Mapping[int, Sequence[HandlerRun]]


@dataclass(frozen=True, slots=True)
class Claim:
    """The process that has last claimed a call, and when, in seconds since the epoch."""

    pid: int | None
    at: float


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Numbers of calls, by what happened to them. Times are seconds."""

    answers: Sequence[Answer]
    runs: Runs
    #: how many final results each call got, by identity; unknown where the subscription was cut, too
    finals: Mapping[str, int] | None = None
    deaths: Sequence[Death] = ()
    #: the last claims of the calls with an unknown outcome, by identity
    claims: Mapping[str, Claim] = field(default_factory=dict)
    #: how long dead workers had their calls
    dead_hands: Mapping[str, float] = field(default_factory=dict)

    @property
    def codes(self) -> Counter[str]:
        """How the calls ended."""
        return Counter(answer.code for answer in self.answers)

    @property
    def run_twice(self) -> list[int]:
        """Calls whose handler ran more than once though it must not."""
        return [
            answer.call.number
            for answer in self.answers
            if not answer.call.may_run_again and len(self._runs_of(answer)) > 1
        ]

    @property
    def not_answered_once(self) -> list[int]:
        """Calls without a final result, or with more than one."""
        finals = self.finals or {}
        return [answer.call.number for answer in self.answers if finals.get(answer.id, 0) != 1]

    @property
    def ok_without_run(self) -> list[int]:
        """Calls that are said to have ended well, but that no handler has run to its end."""
        return [
            answer.call.number
            for answer in self.answers
            if answer.code == "ok" and not any(run.ended_at for run in self._runs_of(answer))
        ]

    @property
    def unknown_without_start(self) -> list[int]:
        """Unknown outcomes of calls that may run again, and those whose missing start no death explains."""
        starting = {answer.id for answers in self._starting.values() for answer in answers[:MOST_STARTING]}
        return [
            answer.call.number
            for answer in self.answers
            if answer.code == UNKNOWN
            and (answer.call.may_run_again or not (self._runs_of(answer) or answer.id in starting))
        ]

    @property
    def died_starting(self) -> int:
        """How many calls were lost between the mark "started" and the first line of their handler."""
        return sum(map(len, self._starting.values()))

    @property
    def wrong_owner(self) -> list[int]:
        """Calls whose output does not come from a run of theirs that ended."""
        return [
            answer.call.number
            for answer in self.answers
            if answer.code == "ok" and _author(answer.result) not in _finishers(self._runs_of(answer))
        ]

    @property
    def run_again(self) -> list[int]:
        """Calls of whatever kind whose handler ran more than once."""
        return [number for number, runs in self.runs.items() if len(runs) > 1]

    @property
    def slowest_refusal(self) -> float:
        """How long it took at most to tell a producer who submitted that the broker is away."""
        refusals = [refusal for answer in self.answers for refusal in answer.refusals]
        return max((r.told_at - r.asked_at for r in refusals if r.of == "submit"), default=0.0)

    @property
    def interrupted(self) -> int:
        """How many runs were under way when their worker was killed, as far as their lines tell."""
        return sum(
            _was_interrupted(answer, death, self._runs_of(answer))
            for death in self.deaths
            for answer in self.answers
        )

    def lines(self) -> Iterable[str]:
        """Say it, for people."""
        codes = ", ".join(f"{count} {code}" for code, count in self.codes.most_common())
        attempts = Counter(answer.result.meta.attempt for answer in self.answers)
        yield f"{len(self.answers)} results: {codes}"
        runs = sum(map(len, self.runs.values()))
        yield f"runs of handlers {runs}; attempts {dict(sorted(attempts.items()))}"
        once = f"answered not exactly once {len(self.not_answered_once)}, " if self.finals is not None else ""
        yield (
            f"{once}run again {len(self.run_again)}, of them non-idempotent {len(self.run_twice)}, "
            f"unknown without a start {len(self.unknown_without_start)}"
        )
        if refusals := sum(len(answer.refusals) for answer in self.answers):
            slowest = f"when submitting after {self.slowest_refusal:.1f} s at most"
            yield f"producers were told {refusals} times that the broker is away, {slowest}"
        if self.deaths:
            latest = f"the last moved on after {max(self.dead_hands.values(), default=0.0):.1f} s"
            interrupted = (
                f"interrupted {self.interrupted} runs, and {self.died_starting} before their first line"
            )
            yield f"{len(self.deaths)} kills {interrupted}; {latest}"

    @property
    def _starting(self) -> dict[int, list[Answer]]:
        """Calls with an unknown outcome and no line of a handler, by the process that died with them."""
        died_at = {death.pid: death.at for death in self.deaths}
        starting = defaultdict[int, list[Answer]](list)
        for answer in self.answers:
            if answer.code != UNKNOWN or self._runs_of(answer):
                continue
            claim = self.claims.get(answer.id)
            if claim and claim.pid in died_at and claim.at <= died_at[claim.pid]:
                starting[claim.pid].append(answer)
        return starting

    def _runs_of(self, answer: Answer) -> Sequence[HandlerRun]:
        return self.runs.get(answer.call.number, ())


def seconds_of(time: str | None) -> float:
    """Return a record's time in seconds since the epoch."""
    assert time is not None
    return datetime.fromisoformat(time).timestamp()


def last_claims(client: Client, answers: Iterable[Answer], pids: Mapping[str, int]) -> dict[str, Claim]:
    """Return who claimed the calls with an unknown outcome, as the ledger has it; ``pids`` are by worker."""
    records = {answer.id: client.record(answer.id) for answer in answers if answer.code == UNKNOWN}
    return {
        call_id: Claim(pids.get(record.worker or ""), (record.claimed_at or 0) / 1000)
        for call_id, record in records.items()
    }


def _author(result: ToolCallResult) -> int:
    return int(result.output["pid"])


def _finishers(runs: Sequence[HandlerRun]) -> set[int]:
    return {run.pid for run in runs if run.ended_at is not None}


def _was_interrupted(answer: Answer, death: Death, runs: Sequence[HandlerRun]) -> bool:
    ran_there = any(run.pid == death.pid for run in runs)
    return ran_there and seconds_of(answer.result.meta.finished_at) > death.at
