"""The options that all commands share."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from goondan_tasks.cli.session import Session, takes_session

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"

seen: list[tuple[Session, str, int]] = []


@takes_session
def noting(
    session: Session, word: Annotated[str, typer.Argument()], count: Annotated[int, typer.Option()] = 1
) -> None:
    """Note what it was called with."""
    seen.append((session, word, count))


def run(*arguments: str) -> tuple[Session, str, int]:
    """Run the command and return what it noted."""
    app = typer.Typer()
    app.command()(noting)
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return seen.pop()


def test_a_command_gets_its_own_arguments_and_the_shared_ones_as_a_session() -> None:
    session, word, count = run("hello", "--count", "3", "--swarm", "s", "--bundle", "b", "--json")

    assert (word, count) == ("hello", 3)
    assert (session.settings.swarm, session.settings.bundle) == ("s", Path("b"))
    assert session.output.as_json


def test_without_options_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://environment/1")

    session, _, _ = run("hello")

    assert session.settings.redis_url == "redis://environment/1"
    assert not session.output.as_json


def test_a_redis_that_is_named_is_the_broker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://environment/1")
    monkeypatch.setenv("GOONDAN_BROKER_URL", "redis://other/2")

    session, _, _ = run("hello", "--redis-url", "redis://named/3")

    assert session.settings.effective_broker_url == session.settings.redis_url == "redis://named/3"


def test_a_child_process_gets_the_settings_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_BROKER_URL", "redis://other/2")
    monkeypatch.setenv("GOONDAN_NAMESPACE", "shop")

    session, _, _ = run("hello", "--redis-url", "redis://named/3", "--swarm", "s")
    environment = session.environment(bundle=Path("/b"))

    ours = {name: value for name, value in environment.items() if name.startswith("GOONDAN_")}
    assert ours == {
        "GOONDAN_REDIS_URL": "redis://named/3",
        "GOONDAN_BROKER_URL": "redis://named/3",
        "GOONDAN_NAMESPACE": "shop",
        "GOONDAN_SWARM": "s",
        "GOONDAN_BUNDLE": "/b",
    }
