"""What a run measures, and how much of it: the command line of ``python -m benchmarks``."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Options:
    """The amounts of a run."""

    #: the cases to measure, by name
    cases: tuple[str, ...]
    #: turns of each system in each case
    rounds: int
    #: calls of one burst
    calls: int
    #: calls over which the worker's memory is watched
    memory_calls: int
    #: how often the bundle changes while calls run
    switches: int
    #: where the report and the chart are written
    folder: Path
    is_quick: bool

    @property
    def few_rounds(self) -> int:
        """Turns of each system where one takes seconds."""
        return max(1, self.rounds // 2)

    @property
    def lone_calls(self) -> int:
        """Calls made one at a time in a turn; they take milliseconds each."""
        return max(20, self.calls // 10)


def read_options(arguments: Sequence[str], cases: Mapping[str, str]) -> Options:
    """Read the command line; ``cases`` says what each measures. Prints the usage and exits if it is wrong."""
    given = _parser(cases).parse_args(arguments)
    rounds, calls, memory_calls, switches = (2, 300, 3_000, 10) if given.quick else (5, 2_000, 100_000, 100)
    return Options(
        cases=tuple(name for name in cases if name in (given.only or cases)),
        rounds=given.rounds or rounds,
        calls=given.calls or calls,
        memory_calls=given.memory_calls or memory_calls,
        switches=given.switches or switches,
        folder=given.folder,
        is_quick=given.quick,
    )


def _parser(cases: Mapping[str, str]) -> argparse.ArgumentParser:
    width = max(map(len, cases))
    parser = argparse.ArgumentParser(
        "python -m benchmarks",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measure Goondan Workers and other task queues side by side on a private Redis.",
        epilog="cases:\n" + "\n".join(f"  {name:<{width}}  {text}" for name, text in cases.items()),
    )
    parser.add_argument("--quick", action="store_true", help="few calls and rounds: some minutes")
    parser.add_argument(
        "--only", action="append", choices=list(cases), metavar="CASE", help="measure one case; repeatable"
    )
    parser.add_argument("--rounds", type=_count, metavar="N", help="turns of each system (5; quick: 2)")
    parser.add_argument("--calls", type=_count, metavar="N", help="calls in a burst (2000; quick: 300)")
    parser.add_argument(
        "--memory-calls", type=_count, metavar="N", help="calls of the memory case (100000; quick: 3000)"
    )
    parser.add_argument(
        "--switches", type=_count, metavar="N", help="switches of the revisions case (100; quick: 10)"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where report.md and the chart go (benchmarks/)"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)
