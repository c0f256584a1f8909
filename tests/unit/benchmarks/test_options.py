from pathlib import Path

import pytest

from benchmarks.options import Options, read_options

NAMES = ["throughput", "latency", "memory"]


def test_without_options_everything_is_measured_in_full() -> None:
    options = read_options([], NAMES)

    assert options.cases == tuple(NAMES)
    assert (options.rounds, options.calls, options.memory_calls) == (5, 2_000, 100_000)
    assert options.folder.name == "benchmarks"


def test_single_amounts_win_over_those_of_a_quick_run(tmp_path: Path) -> None:
    options = read_options(
        ["--quick", "--calls", "40", "--only", "memory", "--only", "latency", "--folder", str(tmp_path)],
        NAMES,
    )

    assert options == Options(
        cases=("latency", "memory"),
        rounds=2,
        calls=40,
        memory_calls=3_000,
        switches=10,
        folder=tmp_path,
        is_quick=True,
    )


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5", ""])
def test_an_amount_that_is_no_count_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--calls", wrong], NAMES)

    assert "--calls: must be a whole number from 1" in capsys.readouterr().err


def test_an_unknown_case_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--only", "troughput"], NAMES)

    assert "'throughput', 'latency', 'memory'" in capsys.readouterr().err
