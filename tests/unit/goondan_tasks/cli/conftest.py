"""What the tests of the command line share: no settings of the developer's own, and a fake client."""

import os

import pytest

from goondan_tasks.cli import session
from tests.unit.goondan_tasks.cli.fake_client import FakeClient


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GOONDAN_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """Give every command the same fake client."""
    fake = FakeClient()
    monkeypatch.setattr(session, "Client", lambda settings, warn: fake.connected(settings))
    return fake
