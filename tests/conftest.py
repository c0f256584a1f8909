"""What every test gets: the check of the rules it shows, short tracebacks in what is logged, and patience."""

import gc
import logging
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from unittest import mock

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.forked_programs import Nursery, forked_programs

pytest_plugins = ["tests.requirements.plugin"]


def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C; let structlog draw no local variables where nothing configures it: it takes seconds."""
    # a shell's background job ignores Ctrl-C, and programs that tests start would inherit that
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
    # a machine that stands still for a fifth of a second is not a fault of what an example shows
    settings.register_profile(
        "patient",
        settings.default,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        max_examples=20 if config.getoption("--one-case") else 50,
        # the same examples each time, so that a red test is due to a change; a seed looks for others
        derandomize=config.getoption("--hypothesis-seed") is None,
    )
    settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the tests' bytecode even where Python keeps none: compiling them takes half of the collection.

    Garbage is not looked for meanwhile, nor ever among the thousands of tests that stay.
    """
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        sys.dont_write_bytecode = kept


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which another Python runs the tests in CI."""
    parser.addoption(
        "--one-case",
        action="store_true",
        help="of each test take one case, of a property few examples: others differ in their data",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the cases, and the order of the files."""
    if config.getoption("--one-case"):
        leave_one_case(config, items)
    spread_waiting_files(items)


def leave_one_case(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all cases of a test but the middle one."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {id(cases[len(cases) // 2]) for cases in tests.values()}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]


def spread_waiting_files(items: list[pytest.Item]) -> None:
    """Spread the files that wait for processes among those that compute, so no core is idle.

    The last fifth computes only: a file that waits must not begin when all others have ended. Nor may one
    that computes for long: those of tests/simulation are the first.
    """
    groups: dict[bool, dict[Path, None]] = {True: {}, False: {}}
    for item in items:
        groups[not {"simulation", "unit"}.isdisjoint(item.path.parts)].setdefault(item.path)
    place = {
        path: index / len(paths) * (1.0 if computes else 0.8)
        for computes, paths in groups.items()
        for index, path in enumerate(paths)
    }
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session", autouse=True)
def forked() -> Iterator[None]:
    """Fork our programs from a process that has imported everything."""
    with forked_programs():
        yield


@pytest.fixture(autouse=True)
def logging_is_as_before() -> Iterator[None]:
    """Refuse tests that leave this process's logging configured: later ones would write to their streams."""
    yield
    ours = structlog.stdlib.ProcessorFormatter
    left = [handler for handler in logging.getLogger().handlers if isinstance(handler.formatter, ours)]
    assert (left, structlog.get_config()["cache_logger_on_first_use"]) == ([], False)


@pytest.fixture
def hangups() -> Iterator[None]:
    """Let SIGHUP do what it does by default: `nohup make test` ignores it, as all that it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def fresh_programs() -> Iterator[None]:
    """Start them as programs: the file's tests are about that, or look at them through ``/proc``."""
    with mock.patch.object(Nursery, "current", ()):
        yield
