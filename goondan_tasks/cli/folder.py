"""The folder that ``goondan dev`` watches: its changes, and its content as revisions for the workers."""

import contextlib
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from redis import Redis

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry
from goondan_tasks.revisions.active import UNCOMMITTED, Activation, ActiveRevision, RevisionChange
from goondan_tasks.revisions.bootstrap import ATTEMPTS, FollowedBundle, are_committed
from goondan_tasks.revisions.checkouts import LOG_SUFFIX, NO_CONTENT, BundleRef, content_files

if TYPE_CHECKING:
    from watchfiles import Change  # an extra

T = TypeVar("T")

#: the file with variables beside a bundle
VARIABLES = ".env"
#: how often dev looks for changes
TICK_SECONDS = 0.2
#: an installation counts as over when no package has come or gone for this long
INSTALL_SECONDS = 2.0
#: a larger folder is not copied on each change
MOST_BYTES = 256 * 1024 * 1024
#: how many checkouts of the folder are kept, for waiting calls that were submitted for an older one
MOST_CHECKOUTS = 20
#: how long a commit may take from its first change of the folder to its proposal
COMMIT_SECONDS = 2.0


def changes_of(
    bundle: Path, state_root: Path, stop: threading.Event, say: Callable[[str], object]
) -> Iterator[Collection[Path]]:
    """Yield the changed files of the bundle, several times a second until ``stop`` is set.

    If the system has no watches left, the folder is read again and again instead, and ``say`` is told.
    """
    matters, found = files_that_matter(state_root), _watched(bundle, stop, say)
    return ([Path(path) for change, path in changes if matters(change, path)] for changes in found)


def _watched(
    bundle: Path, stop: threading.Event, say: Callable[[str], object]
) -> "Iterator[set[tuple[Change, str]]]":
    from watchfiles import watch  # an extra

    begin = partial(
        watch,
        bundle if bundle.is_dir() else bundle.parent,
        watch_filter=None,  # with its own filter it does not yield for changes that this drops
        stop_event=stop,
        debounce=round(TICK_SECONDS * 1000),
        rust_timeout=round(TICK_SECONDS * 1000),
        yield_on_timeout=True,
    )
    try:
        # strict at first: to ignore permissions is to ignore that there are too few watches, too
        yield from begin(ignore_permission_denied=False)
    except PermissionError:
        yield from begin(ignore_permission_denied=True)
    except (OSError, RuntimeError) as error:
        say(f"The folder is polled for changes, since the system cannot watch it: {error}")
        yield from begin(ignore_permission_denied=True, force_polling=True)


def files_that_matter(state_root: Path) -> "Callable[[Change, str], bool]":
    """Return a filter for content and variables, without caches, editors' files and what tools write."""
    from watchfiles import DefaultFilter  # an extra

    ignored = [*DefaultFilter.ignore_dirs, *NO_CONTENT]
    patterns = [*DefaultFilter.ignore_entity_patterns, re.escape(LOG_SUFFIX) + "$"]
    is_content = DefaultFilter(
        ignore_dirs=ignored, ignore_entity_patterns=patterns, ignore_paths=[state_root]
    )

    def matters(change: "Change", path: str) -> bool:
        folder, name = os.path.split(path)
        # not part of a bundle's content, but read by dev
        return is_content(change, os.path.join(folder, "env") if name == VARIABLES else path)  # noqa: PTH118

    return matters


class InstalledPackages:
    """The Python packages that this process can import."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known = self._seen = _installed()
        self._seen_at = clock()

    def have_changed(self) -> bool:
        """Return once whether packages have changed; during an installation they have not yet."""
        found = _installed()
        if found != self._seen:
            self._seen, self._seen_at = found, self._clock()
        if found == self._known or self._clock() - self._seen_at < INSTALL_SECONDS:
            return False
        self._known = found
        return True


def _installed() -> frozenset[str]:
    places = [Path(place) for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}]
    return frozenset(str(info) for place in places for info in place.glob("*.dist-info"))


@dataclass(frozen=True, slots=True)
class CheckedBundle:
    """A bundle without errors, and its agents."""

    bundle: Bundle
    agents: Sequence[AgentRecord]

    @property
    def workspace(self) -> str:
        return self.agents[0].workspace


@dataclass(frozen=True, slots=True)
class FolderRevisions:
    """The content of a bundle's folder, as revisions that the workers of dev follow."""

    _followed: FollowedBundle
    _record: ActiveRevision
    _registry: AgentRegistry
    _workspace: str
    _is_committed: bool
    _made: deque[BundleRef] = field(default_factory=deque)

    @classmethod
    def of(cls, path: Path, checked: CheckedBundle, settings: Settings, redis: Redis) -> Self:
        """Return the revisions of the bundle at ``path``.

        Raises:
            ConfigError: its repository cannot be used.
            BundleRevisionUnavailableError: its folder cannot be read, or should not be copied.
        """
        is_committed = are_committed(checked.bundle, settings)
        followed = FollowedBundle.of(path, settings, by_content=not is_committed)
        _require_copyable(followed.checkouts.source.folder.resolve(), settings)
        keys, workspace = Keys(settings.namespace), checked.workspace
        record = ActiveRevision(redis, keys, workspace)
        return cls(followed, record, AgentRegistry(redis, keys), workspace, is_committed)

    def current(self) -> str:
        """Return the ref of the folder's content.

        Raises:
            BundleRevisionUnavailableError, GitError: it cannot be read.
        """
        return str(_repeated(self._followed.checkouts.source.current))

    def accepts(self, checked: CheckedBundle, settings: Settings) -> bool:
        """Return whether workers that follow these revisions can load a bundle."""
        is_committed = are_committed(checked.bundle, settings)
        return (checked.workspace, is_committed) == (self._workspace, self._is_committed)

    def offer(self, stop: threading.Event | None = None) -> str:
        """Offer the folder's content to the workers; return its ref.

        Raises:
            BundleRevisionUnavailableError, GitError: the folder cannot be read or copied.
            redis.exceptions.RedisError, ValueError: the record of the active revision cannot be read.
        """
        ref = self.current()
        if self._is_committed and stop and not ref.startswith(UNCOMMITTED) and self._is_proposed(ref, stop):
            return ref
        ref = self._checked_out()
        state = self._record.state()
        if state is not None and self._has_followers():
            self._record.propose(RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock())))
            return ref
        if state is not None:  # from an earlier dev, whose files may be gone
            self._record.end(state)
        self._record.begin(ref)
        return ref

    def _has_followers(self) -> bool:
        workers = self._registry.workers()
        return any(one.bundle_ref and one.workspace == self._workspace for one in workers)

    def activation(self, ref: str) -> Activation:
        """Return whether the workers run a ref; raises RedisError and ValueError."""
        activation = Activation.of(ref, self._record.state())
        if activation.reason is None:
            return activation
        with self._followed.checkouts.open(BundleRef.parse(ref)) as checkout:
            theirs, ours = str(checkout.folder), str(self._followed.checkouts.source.folder)
        return activation.model_copy(update={"reason": activation.reason.replace(theirs, ours)})

    def _is_proposed(self, ref: str, stop: threading.Event) -> bool:
        """Return whether a commit is proposed by its maker, which happens after the folder has changed."""
        for _ in range(round(COMMIT_SECONDS / TICK_SECONDS)):
            state = self._record.state()
            if state is None:
                return False
            if ref in {state.active, state.proposed.new_ref if state.proposed else None}:
                return True
            if stop.wait(TICK_SECONDS):
                return True
        return False

    def _checked_out(self) -> str:
        checkouts = self._followed.checkouts
        checkout = _repeated(lambda: checkouts.open(checkouts.source.current()))
        checkout.close()
        self._made.append(checkout.ref)
        while len(self._made) > MOST_CHECKOUTS:
            old = self._made.popleft()
            with contextlib.suppress(OSError):
                if old not in self._made:
                    checkouts.discard(old)
        return str(checkout.ref)


def _require_copyable(folder: Path, settings: Settings) -> None:
    """Raise BundleRevisionUnavailableError if a folder should not be copied on each change."""
    for name, place in (("STATE_ROOT", settings.state_root_path), ("CACHE_DIR", settings.cache_path)):
        if place.resolve().is_relative_to(folder):
            message = f"The folder of the bundle, {folder}, contains GOONDAN_{name}, {place}."
            raise BundleRevisionUnavailableError(message, suggestion="Set it to a directory elsewhere.")
    if sum(found.size for found in content_files(folder)) > MOST_BYTES:
        message = f"The folder of the bundle, {folder}, has more than {MOST_BYTES >> 20} MB."
        raise BundleRevisionUnavailableError(message, suggestion="Keep large files elsewhere.")


def _repeated(read: Callable[[], T]) -> T:
    """Read a folder; retry, because a file may have been written meanwhile."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(BundleRevisionUnavailableError):
            return read()
    return read()
