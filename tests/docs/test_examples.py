"""The files on the how-to pages make a bundle that is valid, passes its own tests, and runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.docs.pages import every_page


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of the how-to pages into a directory."""
    directory = tmp_path_factory.mktemp("how-to")
    for markdown in every_page():
        for block in markdown.blocks():
            if block.title is not None:
                file = directory / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def stack(notes: Path) -> Iterator[LocalStack]:
    """Run the bundle of the how-to pages."""
    with LocalStack(notes / "notes") as running:
        yield running


def run(*command: str, directory: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program in ``directory``."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_bundle_is_valid(notes: Path) -> None:
    done = run("-m", "goondan_tasks.cli", "validate", "notes", directory=notes)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_of_the_bundle_pass(notes: Path) -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "notes", directory=notes)

    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


def test_the_plain_celery_program_prints_its_result(notes: Path, stack: LocalStack) -> None:
    done = run("submit.py", directory=notes, GOONDAN_REDIS_URL=stack.redis_url)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok {'added': 'from plain Celery'}\n"


def test_the_client_program_prints_its_results(notes: Path, stack: LocalStack) -> None:
    done = run("ask.py", directory=notes, GOONDAN_REDIS_URL=stack.redis_url, GOONDAN_BUNDLE="notes")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["ok {'added': 'buy bread'}", "12"]
