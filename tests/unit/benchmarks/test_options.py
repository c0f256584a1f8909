from pathlib import Path

import pytest

from benchmarks.options import Options, read_options

CASES = {"calls": "Measure calls.", "queues": "Measure queues.", "memory": "Measure memory."}


def test_without_options_everything_is_measured_in_full() -> None:
    options = read_options([], CASES)

    assert options.cases == tuple(CASES)
    assert (options.rounds, options.calls, options.memory_calls) == (5, 2_000, 100_000)
    assert options.folder.name == "benchmarks"


def test_single_amounts_win_over_those_of_quick_run(tmp_path: Path) -> None:
    options = read_options(
        ["--quick", "--calls", "40", "--only", "memory", "--only", "queues", "--folder", str(tmp_path)],
        CASES,
    )

    assert options == Options(
        cases=("queues", "memory"),
        rounds=2,
        calls=40,
        memory_calls=3_000,
        switches=10,
        folder=tmp_path,
        is_quick=True,
    )


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5", ""])
def test_amount_that_is_not_count_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--calls", wrong], CASES)

    assert "--calls: must be a whole number from 1" in capsys.readouterr().err


def test_unknown_case_is_refused_and_known_ones_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--only", "cals"], CASES)

    assert "'calls', 'queues', 'memory'" in capsys.readouterr().err


def test_help_says_what_each_case_measures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read_options(["--help"], CASES)

    assert "memory  Measure memory." in capsys.readouterr().out
