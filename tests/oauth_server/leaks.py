"""Looking for secrets wherever something was written down: in Redis, in files, in results."""

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from redis import Redis
from redis.exceptions import RedisError


def forms_of(secret: str) -> tuple[bytes, ...]:
    """Return a secret as it may stand in a text: plain, and within base64 at each of three offsets."""
    data = secret.encode()
    shifted = (base64.b64encode(b"\0" * offset + data)[4 if offset else 0 : -4] for offset in range(3))
    return (data, *shifted)


def places_of(secret: str, texts: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return where a secret stands."""
    forms = forms_of(secret)
    return [place for place, text in texts if any(form in text for form in forms)]


def file_texts(*roots: Path) -> Iterator[tuple[str, bytes]]:
    """Yield every file below some directories."""
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file():
                yield str(path), path.read_bytes()


@contextmanager
def monitored(url: str) -> Iterator[list[tuple[str, bytes]]]:
    """Note all that anybody sends to a Redis, what is published included, for the length of a block."""
    noted: list[tuple[str, bytes]] = []
    with Redis.from_url(url) as redis, redis.monitor() as monitor:

        def note() -> None:
            try:
                noted.extend(
                    ("Redis", command["command"].encode("utf-8", "replace")) for command in monitor.listen()
                )
            except (RedisError, OSError, ValueError, AttributeError):
                return  # the connection is closed

        Thread(target=note, daemon=True).start()
        yield noted
        redis.ping()
