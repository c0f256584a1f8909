"""One authorization server for the tests of this folder, and a stage for each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.oauth_server.running import OAuthServer, oauth_server
from tests.oauth_server.stage import REDIRECT_URI, Stage


class MakeStage(Protocol):
    """Sets a stage whose OAuthApp says this."""

    def __call__(self, **spec: Any) -> Stage: ...


@pytest.fixture(scope="session")
def server() -> Iterator[OAuthServer]:
    with oauth_server(REDIRECT_URI) as running:
        yield running


@pytest.fixture
def make_stage(server: OAuthServer, tmp_path: Path) -> MakeStage:
    server.behave()

    def make(**spec: Any) -> Stage:
        return Stage(server, tmp_path, spec)

    return make


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()
