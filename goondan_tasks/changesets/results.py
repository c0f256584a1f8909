"""What opening and committing a changeset answers, in the documents' form (SwarmBundleApi)."""

import itertools
from dataclasses import dataclass
from typing import Literal, Self

from goondan_tasks.changesets.changeset_error import ChangesetCode
from goondan_tasks.changesets.party import Party
from goondan_tasks.messages import JsonObject, WireModel

CommitStatus = Literal["ok", "rejected", "conflict", "failed"]


class ChangesetHint(WireModel):
    """Where to begin."""

    #: the bundle's folder from ``workdir``: ``.``, or a subfolder of the repository
    bundle_root_in_workdir: str
    #: globs of what may be changed
    recommended_files: tuple[str, ...]
    #: why the workers do not run the base, if they could not load it: what is built on it may fail, too
    warning: str | None = None


class OpenedChangeset(WireModel):
    """A directory to edit the bundle in."""

    changeset_id: str
    #: the revision that the files in it are
    base_ref: str
    workdir: str
    hint: ChangesetHint


class ChangeSummary(WireModel):
    """Paths of files, from the bundle's folder."""

    files_changed: tuple[str, ...] = ()
    files_added: tuple[str, ...] = ()
    files_deleted: tuple[str, ...] = ()
    #: how many more there are, if these are not all
    files_left_out: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not any(self._kinds)

    def shortened(self, characters: int) -> Self:
        """Return it with so many characters of paths of each kind at most."""
        told = [_first(paths, characters) for paths in self._kinds]
        left_out = sum(map(len, self._kinds)) - sum(map(len, told))
        changed, added, deleted = told
        return type(self)(
            files_changed=changed,
            files_added=added,
            files_deleted=deleted,
            files_left_out=left_out or None,
        )

    @property
    def _kinds(self) -> tuple[tuple[str, ...], ...]:
        return self.files_changed, self.files_added, self.files_deleted


def _first(paths: tuple[str, ...], characters: int) -> tuple[str, ...]:
    lengths = itertools.accumulate(map(len, paths))
    return tuple(path for path, length in zip(paths, lengths, strict=True) if length <= characters)


class CommitError(WireModel):
    """Why nothing was committed."""

    code: ChangesetCode
    message: str
    suggestion: str | None = None
    #: the page about the code
    help_url: str | None = None
    #: files that the policy does not allow, or that cannot stand in a bundle
    violated_files: tuple[str, ...] | None = None
    conflicting_files: tuple[str, ...] | None = None
    #: what validation says of the changed bundle, as ``goondan validate --format json`` writes it
    findings: tuple[JsonObject, ...] | None = None


class RollbackResult(WireModel):
    """From which revision to which the bundle went."""

    base_ref: str
    #: the base if that is how the bundle was anyway
    new_ref: str
    summary: ChangeSummary
    #: why workers have not been told
    warning: str | None = None


class CommitResult(WireModel):
    """What came of a commit. ``rejected``, ``conflict`` and ``failed`` leave the directory as it is.

    The one exception: after a conflict it holds the others' changes too, and marks where they meet.
    """

    status: CommitStatus
    changeset_id: str
    base_ref: str | None = None
    #: the base if nothing was changed
    new_ref: str | None = None
    summary: ChangeSummary | None = None
    error: CommitError | None = None
    #: why workers have not been told of what is committed
    warning: str | None = None

    def with_page(self, help_url: str | None) -> Self:
        """Return it with the page about its error, if it has one; the pages are below ``help_url``."""
        if self.error is None or help_url is None:
            return self
        error = self.error.model_copy(update={"help_url": help_url + self.error.code})
        return self.model_copy(update={"error": error})


@dataclass(frozen=True, slots=True)
class Committed:
    """What somebody has committed."""

    new_ref: str
    #: empty if nothing was to be committed
    summary: ChangeSummary
    party: Party
    #: ``None`` for a rollback
    changeset_id: str | None = None
