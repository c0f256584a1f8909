"""Revisions by the names that a person gives them."""

import re

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.branch import Branch
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.repository import Repository
from goondan_tasks.revisions.source import RevisionSource

#: git's own limit for an abbreviation
SHORTEST = 4
_MOST_NAMED = 5
_DIGITS = re.compile("[0-9a-f]{1,64}")


def named_revision(source: RevisionSource, name: str | None) -> BundleRef:
    """Return the revision of a bundle that workers can have: a ref, or any name of a commit.

    Without a name it is the last commit of the branch; of a bundle outside of git, its files as they are.

    Raises:
        BundleRevisionUnavailableError: there is no such revision.
        GitError: other machines could not have it, or git fails.
    """
    if source.repository is None or (name is not None and name.startswith("sha256:")):
        return _present(source, name)
    branch = Branch(source.repository, source.remote)
    commit = branch.tip() if name is None else source.repository.commit_of(name.removeprefix("git:"))
    if commit is None or not source.repository.entries(commit):
        raise _unknown(name, source.repository)
    _require_pushed(source, commit)
    return BundleRef("git", commit)


def _present(source: RevisionSource, name: str | None) -> BundleRef:
    present = source.current()
    if name is not None and name != str(present):
        raise _unknown(name, None)
    return present


def _require_pushed(source: RevisionSource, commit: str) -> None:
    """See that the remote's branch has a commit, if there is a remote: machines fetch from it."""
    repository, remote = source.repository, source.remote
    if repository is None or remote is None:
        return
    there = remote.commit_of(repository.branch())
    if there is None or not repository.is_ancestor(commit, there):
        message = f"The remote {remote.name} does not have {commit}."
        raise GitError(message, suggestion="Push it: other machines fetch it from there.")


def why_unknown(repository: Repository, name: str) -> str:
    """Say why a name means no revision of the bundle: it may mean several, or be too short for git."""
    digits, shown = name.removeprefix("git:"), repr(name[:100])
    if _DIGITS.fullmatch(digits) is None:
        return f"There is no revision {shown} of the bundle."
    if len(digits) < SHORTEST:
        return f"{shown} is too short: at least {SHORTEST} digits of a revision are needed."
    meant = [str(BundleRef("git", commit)) for commit in repository.commits_beginning(digits)]
    if len(meant) > 1:
        return f"{shown} may mean {len(meant)} commits: {', '.join(meant[:_MOST_NAMED])}. Write more digits."
    return f"There is no revision {shown} of the bundle."


def _unknown(name: str | None, repository: Repository | None) -> BundleRevisionUnavailableError:
    told = "The bundle is not committed."
    if name is not None:
        told = why_unknown(repository, name) if repository else f"There is no revision {name[:100]!r} here."
    return BundleRevisionUnavailableError(told, suggestion="`goondan changeset log` shows the revisions.")
