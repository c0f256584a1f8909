"""The options that all commands share."""

import os
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.session import (
    Interruption,
    Session,
    chosen_agents,
    chosen_bundle,
    require_broker,
    takes_session,
)
from goondan_tasks.contract.errors import AgentNotFoundError, BrokerUnreachableError, ConfigError

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


def test_command_gets_own_arguments_and_shared_session() -> None:
    session, word, count = run("hello", "--count", "3", "--swarm", "s", "--bundle", "b", "--json")

    assert (word, count) == ("hello", 3)
    assert (session.settings.swarm, session.settings.bundle) == ("s", Path("b"))
    assert session.output.as_json


def test_without_options_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://environment/1")

    session, _, _ = run("hello")

    assert session.settings.redis_url == "redis://environment/1"
    assert not session.output.as_json


def test_child_process_gets_settings_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_NAMESPACE", "shop")

    session, _, _ = run("hello", "--redis-url", "redis://named/3", "--swarm", "s")
    environment = session.environment(bundle=Path("/b"))

    ours = {name: value for name, value in environment.items() if name.startswith("GOONDAN_")}
    assert ours == {
        "GOONDAN_REDIS_URL": "redis://named/3",
        "GOONDAN_NAMESPACE": "shop",
        "GOONDAN_SWARM": "s",
        "GOONDAN_BUNDLE": "/b",
    }


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@127.0.0.1:1/0",
        "redis://host-that-does-not-resolve.invalid/0",
        "unix:///no/such/socket",
        "rediss://127.0.0.1:1/0",
    ],
)
def test_missing_redis_is_named_without_password(url: str) -> None:
    with pytest.raises(BrokerUnreachableError) as missing:
        require_broker(Settings.load(redis_url=url))

    assert url.replace("secret", "***") in missing.value.message


def test_too_old_redis_is_refused_with_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(info=lambda _section: {"redis_version": "6.0.16"})
    monkeypatch.setattr("goondan_tasks.cli.session.connect", lambda _url: nullcontext(old))

    with pytest.raises(BrokerUnreachableError) as refused:
        require_broker(Settings.load(redis_url="redis://:secret@host/0"))

    assert refused.value.message == "Redis at redis://:***@host/0 is too old: it is version 6.0.16."
    assert refused.value.suggestion == "Use Valkey, or Redis 6.2 or newer."


def test_configured_bundle_is_chosen_with_absolute_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE.parent)

    assert chosen_bundle(Settings.load(bundle="coding-swarm")) == EXAMPLE


def test_current_directory_is_chosen_if_holding_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="No bundle is set"):
        chosen_bundle(Settings.load())

    (tmp_path / "goondan.yaml").touch()
    assert chosen_bundle(Settings.load()) == tmp_path


def test_current_directorys_bundle_is_loaded_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)

    assert (
        Session(Settings.load(), Output(as_json=False)).bundle().agent_names()
        == load_bundle(EXAMPLE).agent_names()
    )


def test_without_names_every_agent_of_swarm_is_chosen() -> None:
    assert chosen_agents(load_bundle(EXAMPLE), None, ()) == ("planner", "coder", "reviewer")


def test_agent_that_is_named_twice_is_chosen_once() -> None:
    assert chosen_agents(load_bundle(EXAMPLE), None, ["coder", "planner", "coder"]) == (
        "coder",
        "planner",
    )


def test_unknown_agent_is_refused_with_suggestion() -> None:
    with pytest.raises(AgentNotFoundError) as refused:
        chosen_agents(load_bundle(EXAMPLE), None, ["coder", "plnner"])

    assert refused.value.message == "Swarm 'coding' has no agent 'plnner'."
    assert refused.value.suggestion == "Did you mean 'planner'? Its agents are: planner, coder, reviewer."


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_first_signal_asks_for_orderly_end(number: signal.Signals, exit_code: int) -> None:
    interruption = Interruption()

    with interruption.listening():
        os.kill(os.getpid(), number)

        assert interruption.asked.wait(30)
    assert interruption.exit_code == exit_code


def test_second_signal_ends_at_once() -> None:
    interruption = Interruption()

    with interruption.listening():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked.wait(30)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert interruption.exit_code == 143


def test_signal_handlers_are_restored_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]

    with Interruption().listening():
        assert signal.getsignal(signal.SIGTERM) not in before

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_under_nohup_end_of_terminal_asks_for_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interruption = Interruption()
    try:
        with interruption.listening():
            signal.raise_signal(signal.SIGHUP)

            assert not interruption.asked.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups")
def test_two_terminal_hangups_end_nothing_at_once() -> None:
    interruption = Interruption()

    with interruption.listening():
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)

    assert interruption.exit_code == 129
