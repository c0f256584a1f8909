"""A private server on a Unix socket that keeps nothing on disk."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from broker_config.embedded import find_redis_server
from tests.waiting import wait_until


@contextmanager
def private_server() -> Iterator[Redis]:
    """Run a server; yield a client of it."""
    with tempfile.TemporaryDirectory(prefix="goondan-sim-") as folder:
        path = Path(folder) / "socket"
        command = [str(find_redis_server()), "--port", "0", "--unixsocket", str(path)]
        server = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "no", "--dir", folder], stdout=subprocess.DEVNULL
        )
        try:
            wait_until(path.exists)
            with Redis(unix_socket_path=str(path)) as redis:
                yield redis
        finally:
            server.kill()
            server.wait()
