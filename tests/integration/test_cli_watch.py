"""--watch on a real terminal, with a Redis that goes away and comes back."""

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.embedded import EmbeddedRedis
from tests.integration.goondan_process import PROGRAM, environment
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
PATIENCE = 60
HIDE_CURSOR, SHOW_CURSOR, LINE_UP = "\x1b[?25l", "\x1b[?25h", "\x1b[1A"


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


class Terminal:
    """A terminal that a command runs on, and all that it has shown."""

    def __init__(self, command: tuple[str, ...], env: dict[str, str]) -> None:
        self.shown = ""
        self._side, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command, env=env, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> None:
        """Wait until this is shown, and forget what was shown so far."""
        wait_until(lambda: text in self.shown, PATIENCE, show=lambda: self.shown)
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        """End the command and the reading."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._side)

    def _read(self) -> None:
        while True:
            try:
                self.shown += os.read(self._side, 4096).decode(errors="replace")
            except OSError:  # nobody has the other side open any more
                return


@pytest.fixture
def terminal(redis: EmbeddedRedis) -> Iterator[Terminal]:
    env = {**environment(redis_url=redis.url, bundle=EXAMPLE), "TERM": "xterm", "COLUMNS": "80"}
    watched = Terminal((*PROGRAM, "queues", "--watch", "0.2"), env)
    yield watched
    watched.close()


def test_the_table_is_renewed_in_place_outlives_an_outage_and_ends_with_the_cursor_back(
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
