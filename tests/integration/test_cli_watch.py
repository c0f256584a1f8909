"""--watch on a real terminal, with a Redis that goes away and comes back."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from tests.integration.goondan_process import PROGRAM, environment
from tests.integration.terminal import PATIENCE, Terminal

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
HIDE_CURSOR, SHOW_CURSOR, LINE_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def terminal(redis: EmbeddedRedis) -> Iterator[Terminal]:
    env = {**environment(redis_url=redis.url, bundle=EXAMPLE), "TERM": "xterm", "COLUMNS": "80"}
    watched = Terminal((*PROGRAM, "queues", "--watch", "0.2"), env)
    yield watched
    watched.close()


def test_table_renews_in_place_survives_outage_and_restores_cursor(
    redis: EmbeddedRedis, terminal: Terminal
) -> None:
    terminal.wait_for(HIDE_CURSOR)
    terminal.wait_for("planner")
    terminal.wait_for(LINE_UP)

    redis.process.kill()
    redis.process.wait()
    terminal.wait_for("cannot be reached")
    terminal.wait_for("planner")
    redis.launch()
    terminal.wait_for("Ctrl-C ends\x1b[0m\r\n\x1b[1magent")

    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(PATIENCE) == 0
    terminal.wait_for(SHOW_CURSOR)
