"""What handlers did: the lines that ``tests/bundles/load`` leaves outside Redis."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """One run of a handler. Times are seconds since the epoch; ``ended_at`` is none if it never ended."""

    number: int
    pid: int
    started_at: float
    ended_at: float | None = None


class HandlerLog:
    """The runs of every call, by the number that the call was given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def runs(self) -> dict[int, list[HandlerRun]]:
        """Return what has been written so far: the runs of each number, in the order of their starts.

        An end belongs to the first run of its number and process that has none.
        """
        runs: defaultdict[int, list[HandlerRun]] = defaultdict(list)
        for line in self.path.read_text("ascii").splitlines():
            event, number, pid, at = line.split()
            run = HandlerRun(int(number), int(pid), float(at))
            if event == "start":
                runs[run.number].append(run)
            else:
                self._end(runs[run.number], run)
        return dict(runs)

    def runs_of(self, number: int) -> list[HandlerRun]:
        """Return the runs of one call."""
        return self.runs().get(number, [])

    @staticmethod
    def _end(runs: list[HandlerRun], end: HandlerRun) -> None:
        place = next(i for i, run in enumerate(runs) if run.pid == end.pid and run.ended_at is None)
        runs[place] = HandlerRun(end.number, end.pid, runs[place].started_at, end.started_at)
