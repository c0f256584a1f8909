"""The parts of an isolated child: its logger, and the process state between calls."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import JsonObject
from workers.processes.channel import ChildChannel
from workers.processes.isolated_child import (
    ChannelHandler,
    ChannelLogger,
    IsolatedChild,
    ProcessState,
)


@pytest.fixture
def ends() -> Iterator[tuple[ChildChannel, ChildChannel]]:
    near, far = (ChildChannel(connection) for connection in socket.socketpair())
    yield near, far
    near.close()
    far.close()


def test_child_of_dying_worker_ends_without_error(
    ends: tuple[ChildChannel, ChildChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = ends
    child = IsolatedChild(far, Path("tool.py"), ChannelHandler(far))

    def answer(order: JsonObject) -> bytes:
        near.close()
        return b"too late"

    monkeypatch.setattr(child, "_answer", answer)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    near.send(b"{}")
    child.serve()


def test_each_log_level_is_passed_on_with_fields() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    logger.debug("a")
    logger.info("b.%s", "c", n=1)
    logger.warning("100%", nested={"list": [None, True]})
    logger.error("d")
    assert lines == [
        ["debug", "a", {}],
        ["info", "b.c", {"n": 1}],
        ["warning", "100%", {"nested": {"list": [None, True]}}],
        ["error", "d", {}],
    ]


def test_fields_without_json_form_show_python_form() -> None:
    lines = list[list[Any]]()
    ChannelLogger(lines.append).info("odd", number=float("nan"), kind={1})
    assert lines == [["info", "odd", {"number": "nan", "kind": "{1}"}]]


def test_exception_becomes_text() -> None:
    lines = list[list[Any]]()
    logger = ChannelLogger(lines.append)
    try:
        raise ValueError("cold")
    except ValueError as error:
        logger.warning("a", exc_info=True)
        logger.error("b", exc_info=error)
    for _, _, fields in lines:
        assert fields["exception"].startswith("Traceback")
        assert fields["exception"].endswith("ValueError: cold")


@pytest.fixture
def state() -> Iterator[ProcessState]:
    state = ProcessState.now()
    yield state
    state.restore()
    os.close(state.directory)


def test_everything_is_put_back(state: ProcessState, tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    os.environ["LEFT"] = "behind"
    del os.environ["PATH"]
    os.umask(0o077)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.alarm(100)
    state.restore()
    assert Path.cwd() == before
    assert dict(os.environ) == state.environment
    assert os.umask(state.umask) == state.umask
    assert signal.getsignal(signal.SIGTERM) == state.on_sigterm
    assert signal.alarm(0) == 0


def test_directory_that_was_moved_is_found_again(tmp_path: Path, state: ProcessState) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.chdir(place)
    there = ProcessState.now()
    os.chdir("/")
    place.rename(tmp_path / "elsewhere")
    there.restore()
    assert Path.cwd() == tmp_path / "elsewhere"
    os.close(there.directory)
