"""What goondan dev shows."""

from pathlib import Path

import pytest

from goondan_tasks.cli.dev_screen import DevScreen


def test_lines_stand_behind_the_names_of_their_processes(capsys: pytest.CaptureFixture[str]) -> None:
    screen = DevScreen()

    screen.line("worker coder", "ready \x1b[2J")
    screen.line("worker with-a-long-name", "[bold]ready")
    screen.line("flower", "two\nlines")

    assert capsys.readouterr().err.splitlines() == [
        "worker coder    | ready \\x1b[2J",
        "worker with-a-long-name | [bold]ready",
        "flower                  | two",
        "flower                  | lines",
    ]


def test_what_to_paste_into_another_terminal_is_quoted_for_the_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    DevScreen().places("redis://:p@127.0.0.1:1/0", None, Path("/my bundle"), is_own_redis=True)

    shown = capsys.readouterr().err
    assert "export GOONDAN_REDIS_URL=redis://:p@127.0.0.1:1/0 GOONDAN_BUNDLE='/my bundle'\n" in shown
    assert "Flower" not in shown
    assert "not a private one" not in shown


def test_a_redis_that_was_named_is_told_from_a_private_one(capsys: pytest.CaptureFixture[str]) -> None:
    DevScreen().places("redis://:p@127.0.0.1:1/0", None, Path("/bundle"), is_own_redis=False)

    assert "from --redis-url or GOONDAN_REDIS_URL" in capsys.readouterr().err
