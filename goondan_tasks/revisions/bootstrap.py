"""The revision that a process starts with, and the loading of other revisions while it runs.

A worker that follows revisions runs from checkouts, never from the folder itself: a commit on this machine
changes the folder under running calls.
"""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import structlog
from redis.exceptions import RedisError

from broker_config.connections import connect
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, BundleError, load_bundle
from goondan_tasks.bundle.bundle import inspect_resources
from goondan_tasks.bundle.workspaces import changed_workspace, declared_workspace
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.revisions.active import ActiveRevision
from goondan_tasks.revisions.checkouts import BundleRef, Checkout, Checkouts, RevisionSource
from goondan_tasks.revisions.git import GitError

logger = structlog.get_logger(__name__)

#: how often the check-out of a folder that is being edited is tried
ATTEMPTS = 3
#: what this process has read already and begins with, by path
_handed_over: "dict[Path, Bootstrap]" = {}


def is_followed(bundle: Bundle, settings: Settings) -> bool:
    """Return whether workers follow the revisions of a bundle: if :func:`are_committed`, or for goondan dev.

    Raises:
        ConfigError: the bundle has no such Swarm.
    """
    return are_committed(bundle, settings) or settings.dev == "on"


def are_committed(bundle: Bundle, settings: Settings) -> bool:
    """Return whether revisions are git commits: the bundle allows changesets, or has a remote.

    Raises:
        ConfigError: the bundle has no such Swarm.
    """
    changesets = bundle.swarm(settings.swarm).spec.policy.changesets
    return changesets.enabled or settings.bundle_remote is not None


@dataclass(frozen=True, slots=True)
class FollowedBundle:
    """The revisions of the bundle that ``GOONDAN_BUNDLE`` names."""

    checkouts: Checkouts
    #: the Swarm that counts, if one is named
    swarm: str | None = None

    @classmethod
    def of(cls, path: Path, settings: Settings, *, by_content: bool = False) -> Self:
        """Return the bundle at ``path``, as commits or, ``by_content``, as the files in its folder.

        Raises:
            ConfigError: its repository cannot be used.
        """
        try:
            source = (
                RevisionSource(path.resolve())
                if by_content
                else RevisionSource.of(path, settings.bundle_remote)
            )
        except GitError as error:
            raise _unfollowable(path, error) from error
        return cls(Checkouts(settings.cache_path, source), settings.swarm)

    def begin(self, attempts: int = ATTEMPTS) -> tuple[str, Bundle, Checkout]:
        """Return the ref, the bundle and a checkout of the folder's current content; the caller closes it.

        Raises:
            ConfigError: it is not valid, or cannot be read or checked out.
        """
        source = self.checkouts.source
        try:
            ref = str(source.current())
            return (ref, *self.load(ref))
        except (BundleRevisionUnavailableError, GitError) as error:
            if attempts > 1:  # someone may be editing it
                return self.begin(attempts - 1)
            raise _unfollowable(source.bundle, error) from error

    def load(self, ref: str, *, instead_of: Bundle | None = None) -> tuple[Bundle, Checkout]:
        """Return the bundle of a revision, and its checkout, which the caller closes.

        It must live in the same workspace as ``instead_of``.

        Raises:
            BundleRevisionUnavailableError: the revision cannot be fetched or checked out.
            ConfigError: it is not valid, or lives in another workspace.
        """
        with contextlib.ExitStack() as undo:
            checkout = undo.enter_context(self.checkouts.open(BundleRef.parse(ref)))
            bundle = replace(load_bundle(checkout.path), home=self.checkouts.source.folder)
            reason = changed_workspace(instead_of, bundle, self.swarm) if instead_of else None
            if reason is not None:
                raise ConfigError(
                    f"The revision cannot be taken while workers run: {reason}.",
                    suggestion="Keep the names of the Package and the Swarm, or restart all workers.",
                )
            undo.pop_all()
            return bundle, checkout

    def supersedes(self, ours: str, active: str) -> bool:
        """Return whether the folder's content is to replace the active revision.

        A commit replaces it if it comes after the active one: a person has pulled. Uncommitted changes
        replace it unless there is a remote, because other machines could not fetch them. An active
        ``sha256:`` ref is always replaced: only one machine has its files.

        Raises:
            GitError: git fails.
        """
        here, there = BundleRef.parse(ours), BundleRef.parse(active)
        source = self.checkouts.source
        repository = source.repository
        if there.scheme == "sha256" or repository is None:
            return True
        if here.scheme == "sha256":
            return source.remote is None
        if repository.commit_of(there.digest) is None:
            return False
        return repository.is_ancestor(there.digest, here.digest)


def _unfollowable(path: Path, error: GoondanError) -> ConfigError:
    message = f"The revisions of the bundle {path} cannot be followed: {error.message}"
    return ConfigError(message, suggestion=error.suggestion)


def require_followable(bundle: Bundle, path: Path, settings: Settings) -> None:
    """Raise ConfigError if a worker has to follow the revisions of a bundle but cannot."""
    if is_followed(bundle, settings):
        by_content = not are_committed(bundle, settings)
        _, _, checkout = FollowedBundle.of(path, settings, by_content=by_content).begin()
        checkout.close()


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The bundle that a process starts with: the one in its folder, or the active revision."""

    bundle: Bundle
    #: the ref and the checkout of the active revision, closed by the caller; ``None`` for the folder itself
    ref: str | None = None
    checkout: Checkout | None = None

    @classmethod
    def of(cls, path: Path, settings: Settings) -> "Bootstrap":
        """Return the bundle at ``path``; if it is not valid, the active revision of its workspace.

        Raises:
            BundleError: it is not valid, and no revision is active, or that one cannot be loaded.
        """
        if path in _handed_over:
            return _handed_over.pop(path)
        try:
            return cls(load_bundle(path))
        except BundleError as error:
            instead = cls._active(path, settings)
            if instead is None:
                raise
            logger.warning("bundle.folder_not_valid", runs=instead.ref, reason=error.message)
            return instead

    def hand_over(self, path: Path) -> None:
        """Let the worker that starts in this process begin with this, instead of reading ``path`` again."""
        _handed_over[path] = self

    @classmethod
    def _active(cls, path: Path, settings: Settings) -> Self | None:
        workspace = settings.workspace or declared_workspace(path, settings.swarm)
        if workspace is None:
            return None
        try:
            with connect(settings.redis_url, name="goondan-begin") as redis:
                state = ActiveRevision(redis, Keys(settings.namespace), workspace).state()
            if state is None:
                return None
            bundle, checkout = FollowedBundle.of(path, settings).load(state.active)
        except (RedisError, ValueError, GoondanError) as error:
            logger.warning("bundle.no_active_revision", workspace=workspace, reason=str(error))
            return None
        return cls(bundle, state.active, checkout)


def bootstrap_bundle(path: Path, settings: Settings) -> Bundle:
    """Return the bundle of :meth:`Bootstrap.of`, for callers that read none of its files; raises as that.

    If possible none of its code is run; then the Tools with ``exports: auto`` may be missing.
    """
    if path in _handed_over:
        return _handed_over[path].bundle
    bundle, _, _ = inspect_resources(path, import_entries=False, import_typed=False)
    if bundle is not None:
        return bundle
    start = Bootstrap.of(path, settings)
    if start.checkout is not None:
        start.checkout.close()
    return start.bundle
