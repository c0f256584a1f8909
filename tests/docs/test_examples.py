"""The files on the pages make bundles that are valid, pass their own tests, and run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.docs.pages import every_page


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files on the pages into a directory."""
    directory = tmp_path_factory.mktemp("examples")
    for markdown in every_page():
        for block in markdown.blocks():
            if block.title is not None:
                file = directory / block.title
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def stack(examples: Path) -> Iterator[LocalStack]:
    """Run the bundle of the how-to pages."""
    with LocalStack(examples / "notes") as running:
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


@pytest.mark.parametrize("bundle", ["hello", "notes"])
def test_the_bundle_is_valid(examples: Path, bundle: str) -> None:
    done = run("-m", "goondan_tasks.cli", "validate", "--strict", bundle, directory=examples)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("bundle", "tests"), [("hello", 2), ("notes", 4)])
def test_the_tests_of_the_bundle_pass(examples: Path, bundle: str, tests: int) -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", bundle, directory=examples)

    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout


def test_the_plain_celery_program_prints_its_result(examples: Path, stack: LocalStack) -> None:
    done = run("submit.py", directory=examples, GOONDAN_REDIS_URL=stack.redis_url)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok {'added': 'from plain Celery'}\n"


def test_the_client_program_prints_its_results(examples: Path, stack: LocalStack) -> None:
    done = run("ask.py", directory=examples, GOONDAN_REDIS_URL=stack.redis_url, GOONDAN_BUNDLE="notes")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["ok {'added': 'buy bread'}", "12"]
