"""Three programs run one Telegram Connection: one polls at a time, and no message is lost or doubled."""

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.sizes import LEASE_SECONDS
from tests.integration.goondan_process import PROGRAM, environment, goondan
from tests.scripted_telegram import EXAMPLE, TOKEN, scripted_telegram
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

PATIENCE = 60
#: for how long three programs run undisturbed
QUIET_SECONDS = 10
#: how long after the lease another program polls, at most (seconds)
MARGIN_SECONDS = 5
#: a connector has ended so soon after its program's death, long before the lease has (seconds)
ENDS_WITHIN = LEASE_SECONDS / 3


@contextmanager
def programs(count: int, settings: dict[str, str], folder: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with ExitStack() as started:
        made = []
        for number in range(count):
            errors = started.enter_context((folder / f"log-{number}").open("wb"))
            process = subprocess.Popen([*PROGRAM, "connectors", "run"], env=settings, stderr=errors)
            started.callback(process.wait)
            started.callback(process.kill)
            made.append(process)
        yield made


def holder(settings: dict[str, str]) -> int:
    """Return the process that receives, 0 if there is none."""
    [connection] = json.loads(goondan("connectors", "list", "--json", env=settings).stdout)
    host, _, number = (connection["process"] or "none:0").rpartition(":")
    assert host in ("none", socket.gethostname())
    return int(number)


def polls_since(telegram: Any, moment: float) -> list[float]:
    return [begun for begun in telegram.begun if begun > moment]


def test_killed_poller_is_followed_by_one_other(tmp_path: Path, say: Say) -> None:
    with scripted_telegram() as telegram:
        variables = {"TELEGRAM_URL": telegram.url, "TELEGRAM_BOT_TOKEN": TOKEN}
        with LocalStack(EXAMPLE, environment=variables) as stack:
            settings = {
                **environment(bundle=EXAMPLE, redis_url=stack.redis_url, lease_seconds=LEASE_SECONDS),
                **variables,
            }
            said: list[str] = []

            def talk_until(condition: Callable[[], object]) -> None:
                """Write a message now and then."""

                def say_more() -> object:
                    if not said or len(telegram.sent) >= len(said) - 5:
                        said.append(f"message {len(said)}")
                        telegram.say(said[-1], chat=len(said) % 3)
                    return condition()

                wait_until(say_more, PATIENCE, show=lambda: telegram.polls[-5:])

            with programs(3, settings, tmp_path) as running:
                talk_until(lambda: telegram.sent)
                quiet = time.monotonic()
                talk_until(lambda: time.monotonic() > quiet + QUIET_SECONDS)
                assert {status for _, status in telegram.polls} == {200}
                took = []
                for _ in range(2):
                    killed = next(one for one in running if one.pid == holder(settings))
                    at = time.monotonic()
                    os.kill(killed.pid, signal.SIGKILL)
                    talk_until(lambda: polls_since(telegram, at + ENDS_WITHIN))  # noqa: B023 - used at once
                    took.append(polls_since(telegram, at + ENDS_WITHIN)[0] - at)
                    talk_until(lambda: holder(settings) not in (0, killed.pid))  # noqa: B023 - used at once
                wait_until(lambda: len(telegram.sent) >= len(said), PATIENCE, show=lambda: telegram.sent[-5:])
            conflicts = sum(status == 409 for _, status in telegram.polls)
            say([f"messages {len(said)}, conflicts {conflicts}", f"polled again after {took} s"])
            assert Counter(one["text"] for one in telegram.sent) == Counter(
                f"You said: {text}" for text in said
            )
            assert max(took) < LEASE_SECONDS + MARGIN_SECONDS
