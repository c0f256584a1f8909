"""A stack that the tests of this folder share: a Redis and one worker of the workshop's agents."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack

WORKSHOP = Path(__file__).parent.parent / "bundles" / "workshop"


@pytest.fixture(scope="session")
def workshop() -> Iterator[LocalStack]:
    with LocalStack(WORKSHOP) as stack:
        yield stack


@pytest.fixture(scope="session")
def client(workshop: LocalStack) -> Client:
    return workshop.client
