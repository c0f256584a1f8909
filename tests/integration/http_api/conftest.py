"""What the tests of the HTTP API share: workers of one agent, and an application without a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.testing import LocalStack
from goondan_web.application import make_application
from goondan_web.doors.api import api_door

PENDING_BUNDLE = Path(__file__).parents[2] / "bundles" / "pending"


@pytest.fixture(scope="package")
def client() -> Iterator[Client]:
    """Return a client of a bundle whose agent ``clerk`` has no worker."""
    with LocalStack(PENDING_BUNDLE, agents=["builder"]) as stack:
        yield stack.client


@pytest.fixture(scope="package")
def http(client: Client) -> Iterator[TestClient]:
    app = make_application([api_door(AsyncClient(client), client.settings)], client.settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as http:
        yield http
