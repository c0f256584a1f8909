"""How the process that keeps leases reaches the Redis of its worker."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker_config.connections import connect
from tests.unit.workers.builtin.test_http_addresses import certificate
from workers.processes.lease_guard import Connection, RedisCommandError
from workers.processes.lease_guard_process import _address

PATIENCE = 20.0


@contextmanager
def answering(server: socket.socket, tls: ssl.SSLContext | None = None) -> Iterator[list[list[str]]]:
    """Answer one connection like Redis, and yield the commands that it gets; ``FAIL`` is refused."""
    seen: list[list[str]] = []

    def serve() -> None:
        try:
            client, _ = server.accept()
            with (
                tls.wrap_socket(client, server_side=True) if tls else client as link,
                link.makefile("rb") as sent,
            ):
                while line := sent.readline():
                    words = [
                        sent.read(int(sent.readline()[1:]) + 2)[:-2].decode() for _ in range(int(line[1:]))
                    ]
                    seen.append(words)
                    link.sendall(b"-ERR no\r\n" if words == ["FAIL"] else b"+OK\r\n")
        except OSError:  # a client that refuses the certificate
            pass

    server.settimeout(PATIENCE)
    server.listen()
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield seen
    finally:
        thread.join()
        server.close()


def reach(url: str, *command: str) -> str:
    link = Connection(_address(connect(url)), PATIENCE)
    try:
        return link.run(*command)
    finally:
        link.close()


def test_guard_reaches_unix_socket_with_user_and_database(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "redis"))

    with answering(server) as seen:
        assert reach(f"unix://me:secret@{tmp_path}/redis?db=2", "PING") == "OK"

    assert seen == [["AUTH", "me", "secret"], ["SELECT", "2"], ["PING"]]


def test_command_refused_by_redis_is_error(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "redis"))

    with answering(server), pytest.raises(RedisCommandError, match="ERR no"):
        reach(f"unix://{tmp_path}/redis", "FAIL")


@pytest.mark.parametrize("name", ["localhost", "elsewhere.test"])
def test_guard_speaks_tls_and_checks_name_in_certificate(tmp_path: Path, name: str) -> None:
    serving, server = certificate(name, tmp_path), socket.socket()
    server.bind(("127.0.0.1", 0))
    url = f"rediss://:secret@localhost:{server.getsockname()[1]}/0?ssl_ca_certs={tmp_path}/server.pem"

    with answering(server, serving) as seen:
        if name == "localhost":
            assert reach(url, "PING") == "OK"
        else:
            with pytest.raises(RedisCommandError, match="CERTIFICATE_VERIFY_FAILED"):
                reach(url, "PING")

    assert seen == ([["AUTH", "secret"], ["PING"]] if name == "localhost" else [])


def test_server_that_is_away_is_error(tmp_path: Path) -> None:
    with pytest.raises(RedisCommandError):
        reach(f"unix://{tmp_path}/none", "PING")
