"""What the scenarios share: a stack without workers, a log of the handlers, and a word on what was seen."""

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.handler_log import HandlerLog
from tests.faults.sizes import LEASE_SECONDS

LOAD_BUNDLE = Path(__file__).parent.parent / "bundles" / "load"
ENVIRONMENT = {"GOONDAN_LEASE_SECONDS": str(LEASE_SECONDS), "GOONDAN_GRACE_SECONDS": "60"}
pytest.register_assert_rewrite("tests.faults.survival")
SEEN = pytest.StashKey[dict[str, list[str]]]()

#: says what a scenario has seen; shown when all tests are over
Say = Callable[[Iterable[str]], None]


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    """A Redis of its own, without workers, with short leases."""
    with LocalStack(LOAD_BUNDLE, workers=0, environment=ENVIRONMENT) as stack:
        yield stack


@pytest.fixture
def log(tmp_path: Path) -> HandlerLog:
    """Where the handlers of this test leave their lines."""
    return HandlerLog(tmp_path / "handlers.log")


@pytest.fixture
def chance() -> random.Random:
    """The same chance each time."""
    return random.Random(1)


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Say:
    """Keep lines for the summary, under the name of the test."""
    seen = request.config.stash.setdefault(SEEN, {})
    return lambda lines: seen.setdefault(request.node.name, []).extend(lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the scenarios have seen."""
    seen = config.stash.get(SEEN, {})
    if seen:
        terminalreporter.section("what the faults did")
    for name, lines in seen.items():
        terminalreporter.line(name)
        for line in lines:
            terminalreporter.line(f"    {line}")
