"""The guild: north, east, south and west in one process with one place; two more processes for the others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.notebook import Notebook

GUILD = Path(__file__).parent.parent.parent / "bundles" / "guild"

#: the agents of each worker process
ONE_PLACE = ["north", "east", "south", "west"]
HERE = ["ann", "cid", "ida"]
THERE = ["bob", "dan", "ivo"]


@pytest.fixture(scope="package")
def guild() -> Iterator[LocalStack]:
    """Agents with an entry are served; ``mute`` and ``muse`` are for producers."""
    environment = {"GOONDAN_LEASE_SECONDS": "3"}
    with LocalStack(GUILD, agents=HERE, environment=environment) as stack:
        stack.start_worker(ONE_PLACE, concurrency=1)
        stack.start_worker(THERE)
        yield stack


@pytest.fixture
def client(guild: LocalStack) -> Client:
    return guild.client


@pytest.fixture
def notes(tmp_path: Path) -> Notebook:
    """Where the agents of this test leave their notes."""
    return Notebook(tmp_path / "notes.jsonl")
