"""The files on the pages make bundles that are valid, pass their own tests, and run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.testing import LocalStack
from tests.docs.pages import every_page, page
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.waiting import wait_until


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


@pytest.fixture(scope="module")
def letters(examples: Path) -> Iterator[LocalStack]:
    """Run the agents of the how-to pages, and the program that is the boss's brain."""
    with LocalStack(examples / "letters") as running:
        environment = {**os.environ, "GOONDAN_REDIS_URL": running.redis_url, "GOONDAN_BUNDLE": "letters"}
        with subprocess.Popen([sys.executable, "boss.py"], cwd=examples, env=environment) as boss:
            yield running
            boss.kill()


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


@pytest.mark.parametrize("bundle", ["hello", "notes", "letters", "library", "desk", "vault", "bakery"])
def test_bundle_is_valid(examples: Path, bundle: str) -> None:
    with chdir(examples):
        done = goondan("validate", "--strict", bundle)

    assert done.exit_code == 0, done.stdout + done.stderr


def test_tests_of_bundles_pass(examples: Path) -> None:
    tests = {"hello": 2, "notes": 4, "desk": 2, "vault": 3, "bakery": 3}
    done = run("-m", "pytest", "-v", "-p", "no:cacheprovider", *tests, directory=examples)

    assert done.returncode == 0, done.stdout
    assert {bundle: len(re.findall(f"^{bundle}/.* PASSED", done.stdout, re.M)) for bundle in tests} == tests


def test_plain_celery_program_prints_its_result(examples: Path, stack: LocalStack) -> None:
    done = run("submit.py", directory=examples, GOONDAN_REDIS_URL=stack.redis_url)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok {'added': 'from plain Celery'}\n"


@pytest.mark.requirement("handoff.target-and-input")
def test_editor_of_readme_asks_counter(examples: Path) -> None:
    with LocalStack(examples / "hello") as stack:
        environment = {"GOONDAN_REDIS_URL": stack.redis_url, "GOONDAN_BUNDLE": "hello"}
        command = ("-m", "goondan_tasks", "request", "editor", "hello agents")
        done = run(*command, directory=examples, **environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout == '{\n  "text": "HELLO AGENTS",\n  "words": 2\n}\n'


def test_client_program_prints_its_results(examples: Path, stack: LocalStack) -> None:
    done = run("ask.py", directory=examples, GOONDAN_REDIS_URL=stack.redis_url, GOONDAN_BUNDLE="notes")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["ok {'added': 'buy bread'}", "12"]


def test_agents_hand_letters_to_each_other_and_producer(examples: Path, letters: LocalStack) -> None:
    environment = {"GOONDAN_REDIS_URL": letters.redis_url, "GOONDAN_BUNDLE": "letters"}
    done = run("dictate.py", directory=examples, **environment)
    doubled = letters.client.request("secretary", {"text": "Dear Sir, the the ship."}, instance_key="job-1")

    assert done.stdout == "{'sent': True, 'signature': 'signed, 4 words'}\n", done.stderr
    assert doubled.response == {"sent": False, "mistakes": ["the the"]}
    with pytest.raises(HandoffError, match="The boss reads text only"):
        letters.client.request("boss", {"no": "text"})


@pytest.mark.requirement("handoff.async")
def test_plain_celery_program_asks_agent_and_gets_vote_events(examples: Path, letters: LocalStack) -> None:
    done = run("ask_agent.py", directory=examples, GOONDAN_REDIS_URL=letters.redis_url)

    assert done.stdout == "ok {'sent': True, 'signature': 'signed, 4 words'}\n", done.stderr
    wait_until(lambda: votes(letters) == "yes\nyes\n")


@pytest.mark.requirement("catalog.step-middleware")
def test_producer_and_agent_go_from_step_to_step(examples: Path) -> None:
    blocks = page("docs/how-to/turns-and-steps.md").blocks()
    [printed] = [block.text for block in blocks if block.language == "text"]
    with LocalStack(examples / "library") as stack:
        environment = {"GOONDAN_REDIS_URL": stack.redis_url, "GOONDAN_BUNDLE": "library"}
        done = run("turn.py", directory=examples, **environment)
        found = stack.client.request("clerk", "Where is Emma?", timeout=30)

    assert done.stdout == printed, done.stderr
    assert found.response == "Emma: shelf 3"


def votes(stack: LocalStack) -> str | None:
    """Return what the chair of the meeting has written."""
    read = stack.client.call("chair", "file-system__read", {"path": "votes.txt"}, instance_key="meeting")
    return None if read.error else read.output["content"]
