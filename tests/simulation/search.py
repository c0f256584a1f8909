"""Explores a machine: every state that is reached with at most so many faults, each state once."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.simulation.model import (
    SETTLER,
    WORKERS,
    BrokenRuleError,
    Machine,
    Part,
    Step,
    is_quiet,
    settled,
    swapped,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken promise, and the steps that lead to it: the fewest faults, and then the fewest steps."""

    reason: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.reason, *(f"{number:3}. {line}" for number, line in enumerate(self.story, 1))])


@dataclass(frozen=True, slots=True)
class Explored:
    """What a search has seen, and what it found."""

    states: int
    transitions: int
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class _Way:
    """The step by which a state was reached first."""

    before: int
    step: Step
    is_swapped: bool
    faults: int


@dataclass(slots=True)
class _Search:
    machine: Machine
    most_faults: int
    numbers: dict[Part, int] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    ways: list[_Way | None] = field(default_factory=list)
    #: the states from which a step on the way to a quiet end leads to a state
    healed_from: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    transitions: int = 0

    def run(self) -> Explored:
        problem = self._explore() or self._dead_end()
        return Explored(len(self.parts), self.transitions, problem)

    def _explore(self) -> Problem | None:
        layers: list[list[int]] = [[] for _ in range(self.most_faults + 1)]
        layers[0].append(self._number(self.machine.start(), None)[0])
        for faults, found in enumerate(layers):
            for number in found:  # grows while it is read: breadth first
                way = self.ways[number]
                if way is not None and way.faults < faults:
                    continue  # reached since with fewer faults
                problem = self._expand(number, faults, layers)
                if problem is not None:
                    return problem
        return None

    def _expand(self, number: int, faults: int, layers: list[list[int]]) -> Problem | None:
        try:
            for step in self._steps(self.parts[number]):
                total = faults + step.faults
                if total > self.most_faults:
                    continue
                self.transitions += 1
                reached, is_better, problem = self._reach(number, step, total)
                if problem:
                    return Problem(problem, self._story(reached))
                if is_better:
                    layers[total].append(reached)
                if step.heals:
                    self.healed_from[reached].append(number)
        except BrokenRuleError as broken:
            return Problem(broken.reason, self._story(number, broken.worker, broken.reason))
        return None

    def _steps(self, part: Part) -> Iterator[Step]:
        yield from self.machine.steps(part)
        for worker in WORKERS:
            rest = self.machine.without(part, worker)
            if rest is not part:
                yield Step("worker {w} dies", rest, worker, faults=1, heals=False)

    def _reach(self, before: int, step: Step, faults: int) -> tuple[int, bool, str]:
        part = settled(step.part, self.machine.kinds)
        other = swapped(part)
        is_swapped = other.hands < part.hands
        way = _Way(before, step, is_swapped, faults)
        number, is_new = self._number(other if is_swapped else part, way)
        if is_new:
            return number, True, self.machine.check(self.parts[number])
        known = self.ways[number]
        if known is not None and known.faults > faults:
            self.ways[number] = way
            return number, True, ""
        return number, False, ""

    def _number(self, part: Part, way: _Way | None) -> tuple[int, bool]:
        number = self.numbers.setdefault(part, len(self.parts))
        is_new = number == len(self.parts)
        if is_new:
            self.parts.append(part)
            self.ways.append(way)
        return number, is_new

    def _dead_end(self) -> Problem | None:
        """Return a state from which no quiet end can be reached although nothing fails any more."""
        good = {number for number, part in enumerate(self.parts) if is_quiet(part)}
        todo = list(good)
        while todo:
            before = [one for one in self.healed_from[todo.pop()] if one not in good]
            good.update(before)
            todo += before
        dead = next((number for number in range(len(self.parts)) if number not in good), None)
        if dead is None:
            return None
        return Problem("no quiet end can be reached any more", self._story(dead))

    def _story(self, number: int, worker: int = SETTLER, last: str = "") -> tuple[str, ...]:
        ways = []
        while (way := self.ways[number]) is not None:
            ways.append(way)
            number = way.before
        lines, swaps = [], 0
        for way in reversed(ways):
            lines.append(way.step.text.format(w=_named(way.step.worker, swaps)))
            swaps += way.is_swapped
        if last:
            lines.append(last + ("" if worker == SETTLER else f" (worker {_named(worker, swaps)})"))
        return tuple(lines)


def _named(worker: int, swaps: int) -> str:
    return "AB"[(worker + swaps) % 2] if worker != SETTLER else ""


def explore(machine: Machine, most_faults: int) -> Explored:
    """Explore a machine; stop at the first problem."""
    return _Search(machine, most_faults).run()
