"""Noticing changes of a bundle's files."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from watchfiles import Change

from goondan_tasks.cli.bundle_watch import BundleWatch, files_that_matter
from tests.waiting import wait_until


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """End the watch after the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    ("path", "matters"),
    [
        ("/b/goondan.yaml", True),
        ("/b/agents.yml", True),
        ("/b/tools/plan.py", True),
        ("/b/notes.txt", False),
        ("/b/tools/__pycache__/plan.cpython-311.pyc", False),
        ("/b/.git/config.yaml", False),
        ("/b/.venv/lib/x.py", False),
        ("/b/state/workspaces/w/instances/i/workspace/made.py", False),
    ],
)
def test_yaml_and_python_matter_but_not_what_tools_write(path: str, matters: bool) -> None:
    assert files_that_matter(Path("/b/state"))(Change.modified, path) is matters


@pytest.mark.parametrize("name", ["", "goondan.yaml"])
def test_a_change_is_noticed_in_a_directory_and_beside_a_single_file(
    name: str, tmp_path: Path, stop: threading.Event
) -> None:
    (tmp_path / "goondan.yaml").touch()
    watch = BundleWatch(tmp_path / name, tmp_path / "state", stop)
    watch.start()
    contents = map(str, itertools.count())

    def is_noticed() -> bool:
        (tmp_path / "goondan.yaml").write_text(next(contents), encoding="utf-8")
        return watch.has_changed()

    wait_until(is_noticed)


def test_without_a_change_nothing_is_noticed(tmp_path: Path, stop: threading.Event) -> None:
    assert not BundleWatch(tmp_path, tmp_path / "state", stop).has_changed()
