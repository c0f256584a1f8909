"""A private server on a Unix socket that keeps nothing on disk."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from broker_config.embedded import find_redis_server
from broker_config.refusals import RefusalParser
from tests.waiting import wait_until


@contextmanager
def private_server() -> Iterator[Redis]:
    """Run a server; yield a client of it that reads errors as the product does, and tries nothing again."""
    with tempfile.TemporaryDirectory(prefix="goondan-sim-") as folder:
        path = Path(folder) / "socket"
        command = [str(find_redis_server()), "--port", "0", "--unixsocket", str(path)]
        server = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "no", "--dir", folder], stdout=subprocess.DEVNULL
        )
        try:
            wait_until(path.exists)
            # redis-py gives up after 5 s, for which a busy machine may let the server wait
            options: Any = {"parser_class": RefusalParser, "retry": Retry(NoBackoff(), 0)}
            options["socket_timeout"] = 60
            # each mutation has parts of its own, with connections that stay open
            with Redis.from_url(f"unix://{path}", max_connections=10_000, **options) as redis:
                yield redis
        finally:
            server.kill()
            server.wait()
