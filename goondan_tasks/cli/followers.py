"""The workers that follow a bundle's revisions, as far as a command reaches them."""

import contextlib
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Self

from broker_config.connections import connect
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.changesets import CommitLock, Committed, propose_commit, redis_lock
from goondan_tasks.cli.selection import chosen_bundle
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.instances.table import encoded
from goondan_tasks.revisions.active import (
    Activation,
    ActiveRevision,
    RevisionChange,
    RevisionState,
    await_activation,
)
from goondan_tasks.roster import Roster


class Followers:
    """The record of the bundle's revisions in Redis, which may be away; once it is, it is not asked again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._redis = connect(settings.redis_url, name="goondan-changeset")
        self._keys = Keys(settings.namespace)
        self._away: BrokerUnreachableError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()

    def locks(self) -> tuple[CommitLock, ...]:
        """Return the lock that the machines share; none if Redis is away, or the bundle has no name now."""
        try:
            self.state()
        except (BrokerUnreachableError, ConfigError):
            return ()
        return (partial(redis_lock, self._redis, self._keys.commit_lock(encoded(self._workspace()))),)

    def announce(self, committed: Committed) -> None:
        """Propose what was committed.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
            ConfigError: the bundle is not valid, as it stands on disk.
        """
        active = self._active()
        with self._reached():
            propose_commit(active, committed)

    def propose(self, change: RevisionChange) -> None:
        """Propose a revision; raises as :meth:`announce`."""
        active = self._active()
        with self._reached():
            active.propose(change)

    def state(self) -> RevisionState | None:
        """Return which revision is active; ``None`` if none is followed. Raises as :meth:`announce`."""
        active = self._active()
        with self._reached():
            return active.state()

    def outcome(self, ref: str, seconds: float) -> Activation:
        """Return what becomes of a proposal; without workers it is not waited for. Raises as above."""
        with self._reached():
            is_anybody_there = bool(Roster(self._redis, self._keys).workers())
        return await_activation(ref, self.state, seconds if is_anybody_there else 0.0)

    def _active(self) -> ActiveRevision:
        return ActiveRevision(self._redis, self._keys, self._workspace())

    def _workspace(self) -> str:
        settings = self._settings
        return settings.workspace or load_bundle(chosen_bundle(settings)).workspace_name(settings.swarm)

    @contextlib.contextmanager
    def _reached(self) -> Iterator[None]:
        if self._away is not None:
            raise self._away
        try:
            with broker_errors(self._settings.redis_url):
                yield
        except BrokerUnreachableError as error:
            self._away = error
            raise
