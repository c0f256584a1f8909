"""What a call changes in its process is put back for the next one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.processes.process_state import ProcessState


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


def test_a_directory_that_was_moved_is_found_again(tmp_path: Path, state: ProcessState) -> None:
    place = tmp_path / "place"
    place.mkdir()
    os.chdir(place)
    there = ProcessState.now()
    os.chdir("/")
    place.rename(tmp_path / "elsewhere")
    there.restore()
    assert Path.cwd() == tmp_path / "elsewhere"
    os.close(there.directory)
