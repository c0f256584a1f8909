"""The reckoning after a scenario: what was lost, doubled or late, from the handlers' own lines."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from goondan_tasks.client import Client
from goondan_tasks.messages import ToolCallResult
from tests.faults.crowd import Answer
from tests.faults.fleet import Death
from tests.faults.handler_log import HandlerRun

UNKNOWN = "E_TOOL_OUTCOME_UNKNOWN"
POISONED = "E_TOOL_POISONED"

#: The mark "started" is written just before the handler, whose first act is its line. A kill may fall between
#: the two, if it comes no later than this after the claim.
STARTING_SECONDS = 1.5

Runs = Mapping[int, Sequence[HandlerRun]]


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Numbers of calls, by what happened to them. Times are seconds."""

    answers: Sequence[Answer]
    runs: Runs
    #: how many final results each call got, by identity; unknown where the subscription was cut, too
    finals: Mapping[str, int] | None = None
    deaths: Sequence[Death] = ()
    #: when calls with an unknown outcome were claimed, by identity, in seconds since the epoch
    claimed_at: Mapping[str, float] = field(default_factory=dict)
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
        """Calls with an unknown outcome though they may be run again, or their handler never started."""
        return [
            answer.call.number
            for answer in self.answers
            if answer.code == UNKNOWN
            and (answer.call.may_run_again or not (self._runs_of(answer) or self._died_starting(answer)))
        ]

    @property
    def died_starting(self) -> int:
        """How many workers were killed between the mark "started" and the first line of a handler."""
        return sum(
            answer.code == UNKNOWN and not self._runs_of(answer) and self._died_starting(answer)
            for answer in self.answers
        )

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

    def _died_starting(self, answer: Answer) -> bool:
        claimed_at = self.claimed_at.get(answer.id, 0.0)
        return any(0 <= death.at - claimed_at <= STARTING_SECONDS for death in self.deaths)

    def _runs_of(self, answer: Answer) -> Sequence[HandlerRun]:
        return self.runs.get(answer.call.number, ())


def seconds_of(time: str | None) -> float:
    """Return a record's time in seconds since the epoch."""
    assert time is not None
    return datetime.fromisoformat(time).timestamp()


def claim_times(client: Client, answers: Iterable[Answer]) -> dict[str, float]:
    """Return when the calls with an unknown outcome were claimed, as the ledger has it."""
    unknown = [answer.id for answer in answers if answer.code == UNKNOWN]
    return {call_id: (client.record(call_id).claimed_at or 0) / 1000 for call_id in unknown}


def _author(result: ToolCallResult) -> int:
    return int(result.output["pid"])


def _finishers(runs: Sequence[HandlerRun]) -> set[int]:
    return {run.pid for run in runs if run.ended_at is not None}


def _was_interrupted(answer: Answer, death: Death, runs: Sequence[HandlerRun]) -> bool:
    ran_there = any(run.pid == death.pid for run in runs)
    return ran_there and seconds_of(answer.result.meta.finished_at) > death.at
