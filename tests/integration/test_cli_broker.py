"""The command line and a broker that is not there."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.goondan_process import environment, goondan, goondan_program

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
#: within it an unreachable broker is told
LIMIT_SECONDS = 10.0

COMMANDS = [
    ("call", "coder", "bash__exec", "{}"),
    ("result", "x"),
    ("calls",),
    ("queues",),
    ("agents",),
    ("doctor",),
    ("worker", "--agent", "coder"),
    ("flower", "--port", "5999"),
    ("dev", "--no-flower"),
]


@pytest.fixture(scope="module")
def deaf_port() -> Iterator[int]:
    """Accept connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def closed_port() -> int:
    """Return a port where nobody listens: below those that the system gives out."""
    return 1


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_unreachable_broker_is_reported_with_hidden_password(
    command: tuple[str, ...], closed_port: int
) -> None:
    url = f"redis://:secret@127.0.0.1:{closed_port}/0"

    env = environment(redis_url=url, bundle=EXAMPLE, connect_timeout_seconds=0)

    done = goondan(*command, "--json", env=env)

    assert done.exit_code == 5
    assert f"redis://:***@127.0.0.1:{closed_port}/0 cannot be reached" in done.stdout
    assert "secret" not in done.stdout + done.stderr


def test_silent_broker_is_reported_within_ten_seconds(deaf_port: int, closed_port: int) -> None:
    def seconds_with(port: int, command: tuple[str, ...]) -> float:
        began = time.monotonic()
        url = f"redis://127.0.0.1:{port}/0"
        done = goondan_program(
            *command, env=environment(redis_url=url, bundle=EXAMPLE, connect_timeout_seconds=0)
        )
        assert done.exit_code == 5
        return time.monotonic() - began

    def is_told_in_time(command: tuple[str, ...]) -> bool:
        # what the program takes by itself, which is much on a busy machine, is not a waiting for the broker
        return seconds_with(deaf_port, command) - seconds_with(closed_port, command) < LIMIT_SECONDS

    def is_told_in_time_once(command: tuple[str, ...]) -> bool:
        # a machine that stands still for seconds does not do so each time; a program that waits too long does
        return any(is_told_in_time(command) for _ in range(3))

    with ThreadPoolExecutor(2) as side_by_side:
        assert list(side_by_side.map(is_told_in_time_once, [COMMANDS[0], ("doctor",)])) == [True, True]
