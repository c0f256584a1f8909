"""Running Flower as a process, asked over HTTP as a browser does."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.goondan_process import environment, start
from tests.waiting import wait_until

PATIENCE = 60


@contextmanager
def flower(redis_url: str) -> Iterator[str]:
    """Run Flower without the bundle, its API open; yield its URL. It ends on SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    env = {**environment(redis_url=redis_url), "FLOWER_UNAUTHENTICATED_API": "true"}
    process = start("flower", "--port", str(port), env=env)
    try:
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/healthcheck"), PATIENCE)
        yield f"http://127.0.0.1:{port}"
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    finally:
        process.kill()


def _answers(url: str) -> bool:
    try:
        return bool(page(url))
    except OSError:
        return False


def page(url: str) -> str:
    """Fetch a page."""
    with urllib.request.urlopen(url, timeout=30) as response:  # noqa: S310 - our own address
        text: str = response.read().decode()
        return text


def document(url: str) -> Any:
    """Fetch a JSON document."""
    return json.loads(page(url))
