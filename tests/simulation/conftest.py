"""A server for the walks of a module, and no log lines: walks are full of faults that are logged."""

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.simulation.server import private_server
from tests.simulation.silence import silence, speak


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    with private_server() as redis:
        yield redis


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    silence()
    yield
    speak()
