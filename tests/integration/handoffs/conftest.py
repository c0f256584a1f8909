"""Agents that hand on work: north, east, south, west in one process with one place, others in two more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.notebook import Notebook

HANDOFFS_BUNDLE = Path(__file__).parent.parent.parent / "bundles" / "handoffs"

#: the agents of each worker process
ONE_PLACE = ["north", "east", "south", "west"]
HERE = ["ann", "cid", "ida"]
THERE = ["bob", "dan", "ivo"]


@pytest.fixture(scope="package")
def handoffs_stack() -> Iterator[LocalStack]:
    """Agents with an entry are served; ``mute`` and ``muse`` are for producers."""
    environment = {"GOONDAN_LEASE_SECONDS": "3"}
    with LocalStack(HANDOFFS_BUNDLE, agents=HERE, environment=environment) as stack:
        stack.start_worker(ONE_PLACE, concurrency=1)
        stack.start_worker(THERE)
        yield stack


@pytest.fixture
def client(handoffs_stack: LocalStack) -> Client:
    return handoffs_stack.client


@pytest.fixture
def notes(tmp_path: Path) -> Notebook:
    """Where the agents of this test leave their notes."""
    return Notebook(tmp_path / "notes.jsonl")
