"""A bundle whose revisions are followed: which one a process begins with, and how it gets any other.

It runs from checkouts and never from the folder itself: a commit on this machine changes the folder under
running calls.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.checkouts import Checkout, Checkouts
from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.source import RevisionSource
from goondan_tasks.revisions.workspace import changed_workspace

#: how often it is tried to check a folder out while it changes
BEGINNINGS = 3


class UnfollowableError(ConfigError):
    """The revisions of the bundle cannot be followed."""


@dataclass(frozen=True, slots=True)
class FollowedBundle:
    """The revisions of the bundle that ``GOONDAN_BUNDLE`` names."""

    checkouts: Checkouts
    #: the Swarm that counts, if one is named
    swarm: str | None = None

    @classmethod
    def of(cls, path: Path, settings: Settings) -> Self:
        """Return the bundle at ``path``, as these settings say.

        Raises:
            ConfigError: it is in a repository that git cannot use.
        """
        try:
            source = RevisionSource.of(path, settings.bundle_remote)
        except GitError as error:
            raise _not_followed(path, error) from error
        return cls(Checkouts(settings.cache_path, source), settings.swarm)

    def begin(self) -> tuple[str, Bundle, Checkout]:
        """Return what stands in the folder now: its ref, and as :meth:`load` does.

        Raises:
            ConfigError: it is not valid, or cannot be read or checked out.
        """
        for _ in range(BEGINNINGS - 1):
            with contextlib.suppress(UnfollowableError):  # somebody may just be editing it
                return self._begin()
        return self._begin()

    def _begin(self) -> tuple[str, Bundle, Checkout]:
        source = self.checkouts.source
        try:
            ref = str(source.current())
            return (ref, *self.load(ref))
        except (BundleRevisionUnavailableError, GitError) as error:
            raise _not_followed(source.bundle, error) from error

    def load(self, ref: str, *, workspace: str | None = None) -> tuple[Bundle, Checkout]:
        """Return the bundle as it is in a revision, in a checkout that whoever asked for it closes.

        ``workspace`` is the one that the bundle is to live in, if it is not at liberty to say so itself.

        Raises:
            BundleRevisionUnavailableError: it cannot be had.
            ConfigError: it is not valid, or lives in another workspace.
        """
        with contextlib.ExitStack() as undo:
            checkout = undo.enter_context(self.checkouts.open(BundleRef.parse(ref)))
            bundle = load_bundle(checkout.path)
            reason = changed_workspace(workspace, bundle, self.swarm) if workspace else None
            if reason is not None:
                raise ConfigError(
                    f"The revision cannot be taken while workers run: {reason}.",
                    suggestion="Keep the names of the Package and the Swarm, or restart all workers.",
                )
            undo.pop_all()
            return bundle, checkout

    def supersedes(self, ours: str, active: str) -> bool:
        """Say whether what stands in the folder is to become active in place of what is.

        A commit is, if it comes after the active one: somebody has pulled. Uncommitted changes are, unless
        there is a remote: other machines could not get them. What is active in its place is kept only if
        others could get that: a digest of files stands for what is on one machine.

        Raises:
            GitError: git cannot tell.
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


def is_followed(bundle: Bundle, settings: Settings) -> bool:
    """Say whether workers follow the revisions of a bundle: it allows changesets, or has a remote.

    Raises:
        ConfigError: the bundle has no such Swarm.
    """
    changesets = bundle.swarm(settings.swarm).spec.policy.changesets
    return changesets.enabled or settings.bundle_remote is not None


def _not_followed(path: Path, error: GoondanError) -> "UnfollowableError":
    return UnfollowableError(
        f"The revisions of the bundle {path} cannot be followed: {error.message}", suggestion=error.suggestion
    )


def require_followable(bundle: Bundle, path: Path, settings: Settings) -> None:
    """Refuse a bundle whose revisions a worker is to follow, and cannot.

    Raises:
        ConfigError: it cannot be checked out, or git cannot use its repository.
    """
    if is_followed(bundle, settings):
        _, _, checkout = FollowedBundle.of(path, settings).begin()
        checkout.close()
