"""The private Redis and the lanes on it."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from redis import Redis

from benchmarks import place
from benchmarks.bundle_copy import bundle_with
from benchmarks.lane import Lane, Surroundings, end_lanes
from benchmarks.revised_bundle import revised_bundle
from benchmarks.shape import Shape
from benchmarks.systems import System
from broker_config.embedded import EmbeddedRedis
from broker_config.process_group import ProcessGroup

#: as many as Redis has when nobody says otherwise
DATABASES = 16


class Fleet:
    """One redis-server for all; each lane has a database of its own, and ends with the ``with`` block."""

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._free = list(range(DATABASES))
        self._lanes = 0

    def __enter__(self) -> Self:
        """Start Redis.

        Raises:
            EmbeddedRedisError: there is no redis-server, or it does not start.
        """
        with ExitStack() as resources:
            self._redis = resources.enter_context(EmbeddedRedis())
            self._directory = Path(tempfile.mkdtemp(prefix="goondan-benchmarks-"))
            self._group = resources.enter_context(ProcessGroup(self._directory))
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    @contextmanager
    def lanes(self, wanted: Iterable[tuple[System, Shape]]) -> Iterator[list[Lane]]:
        """Give lanes that are not started; their processes and their data end with the block."""
        lanes = [Lane(system, shape, self._surroundings(shape)) for system, shape in wanted]
        try:
            yield lanes
        finally:
            end_lanes(lanes)
            for lane in lanes:
                self._tidy_up(lane)

    @contextmanager
    def working(self, wanted: Iterable[tuple[System, Shape]]) -> Iterator[list[Lane]]:
        """Give lanes whose processes are started, all at once."""
        with self.lanes(wanted) as lanes:
            for lane in lanes:
                lane.start_producer()
                lane.start_worker()
            yield lanes

    def redis(self, lane: Lane) -> Redis:
        """Connect to a lane's database."""
        return Redis.from_url(lane.surroundings.redis_url)

    def redis_version(self) -> str:
        """Return the version of the redis-server."""
        with Redis.from_url(self._redis.url) as redis:
            version: str = redis.info("server")["redis_version"]
        return version

    def _surroundings(self, shape: Shape) -> Surroundings:
        database = self._free.pop(0)
        self._lanes += 1
        folder = self._directory / f"lane-{self._lanes}"
        folder.mkdir()
        url = urlsplit(self._redis.url)._replace(path=f"/{database}").geturl()
        bundle = self._bundle(shape, folder)
        environment = place.environment(url, shape.queues, bundle, folder)
        return Surroundings(database, url, environment, folder, self._group)

    def _bundle(self, shape: Shape, folder: Path) -> Path:
        if shape.revisions:
            return revised_bundle(folder / "bundle", shape.revisions)
        return bundle_with(shape.queues, self._directory)

    def _tidy_up(self, lane: Lane) -> None:
        with self.redis(lane) as redis:
            redis.flushdb(asynchronous=True)  # hundreds of thousands of calls take seconds
        self._free.append(lane.surroundings.database)


def in_turns(lanes: Sequence[Lane], rounds: int) -> Iterator[Lane]:
    """Give every lane once a round, each round beginning with another one: noise hits all alike."""
    for turn in range(rounds):
        first = turn % len(lanes)
        yield from (*lanes[first:], *lanes[:first])
