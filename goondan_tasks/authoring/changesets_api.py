"""The interface of changesets for Extensions and v1 handlers: its calls and their answers (000 §12.4)."""

import itertools
from typing import Any, Literal, Protocol, Self

from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import JsonObject, WireModel

#: ``BUNDLE_INVALID`` is ours: the specification does not require that a changed bundle is validated
ChangesetCode = Literal[
    "CHANGESET_NOT_FOUND", "GIT_ERROR", "POLICY_VIOLATION", "MERGE_CONFLICT", "BUNDLE_INVALID"
]
CommitStatus = Literal["ok", "rejected", "conflict", "failed"]


class ChangesetError(GoondanError):
    """The changeset cannot be used."""

    code = "GIT_ERROR"
    suggestion = "Read the message, and open another changeset if this one cannot be used."
    documents_every_code = True

    def __init__(self, message: str, *, code: ChangesetCode, suggestion: str | None = None) -> None:
        super().__init__(message, code=code, suggestion=suggestion)


class ChangesetHint(WireModel):
    """A starting point for the editor of a changeset."""

    #: the bundle's folder from ``workdir``: ``.``, or a subfolder of the repository
    bundle_root_in_workdir: str
    #: globs of the files that may be changed
    recommended_files: tuple[str, ...]
    #: why the workers could not load the base, if so: a change of it may fail too
    warning: str | None = None


class OpenedChangeset(WireModel):
    """A directory in which the bundle can be edited."""

    changeset_id: str
    #: the revision of its files
    base_ref: str
    workdir: str
    hint: ChangesetHint


class ChangeSummary(WireModel):
    """The files that a commit changes, by paths from the bundle's folder."""

    files_changed: tuple[str, ...] = ()
    files_added: tuple[str, ...] = ()
    files_deleted: tuple[str, ...] = ()
    #: how many further files there are, if some are left out
    files_left_out: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is changed."""
        return not any(self._kinds)

    def shortened(self, characters: int) -> Self:
        """Return a summary with at most ``characters`` of paths of each kind."""
        kept = [_first(paths, characters) for paths in self._kinds]
        left_out = sum(map(len, self._kinds)) - sum(map(len, kept))
        changed, added, deleted = kept
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
    #: files that the policy does not allow, or that cannot be part of a bundle
    violated_files: tuple[str, ...] | None = None
    conflicting_files: tuple[str, ...] | None = None
    #: the findings of the changed bundle, as ``goondan validate --format json`` writes them
    findings: tuple[JsonObject, ...] | None = None


class CommitResult(WireModel):
    """The answer to a commit. ``rejected`` and ``failed`` leave the directory unchanged.

    After a ``conflict`` the directory also contains the others' changes, with markers at the conflicts.
    """

    status: CommitStatus
    changeset_id: str
    base_ref: str | None = None
    #: the base if nothing was changed
    new_ref: str | None = None
    summary: ChangeSummary | None = None
    error: CommitError | None = None
    #: why the commit was not proposed to the workers
    warning: str | None = None

    def with_page(self, help_url: str | None) -> Self:
        """Return it with the page about its error, if it has one, below ``help_url``."""
        if self.error is None or help_url is None:
            return self
        error = self.error.model_copy(update={"help_url": help_url + self.error.code})
        return self.model_copy(update={"error": error})


class RollbackResult(WireModel):
    """The revisions before and after a rollback."""

    base_ref: str
    #: the base if the bundle is already as it was at that revision
    new_ref: str
    summary: ChangeSummary
    #: why the commit was not proposed to the workers
    warning: str | None = None


class SwarmBundleApi(Protocol):
    """Access to the bundle for one agent in one instance.

    The methods block in plain code, and are coroutines in ``async`` code. They return JSON objects in the
    specification's form.
    """

    def open_changeset(self, reason: str | None = None) -> Any:
        """Open a changeset; return ``{changesetId, baseRef, workdir, hint}``.

        ``workdir`` is inside the instance's workdir, so that the built-in tools reach it.

        Raises:
            ChangesetError: the policy does not allow changesets, or git fails.
        """

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> Any:
        """Commit a changeset.

        Return ``{status, changesetId, baseRef?, newRef?, summary?, error?, warning?}``. ``status`` is ``ok``,
        ``rejected``, ``conflict`` or ``failed``. Unless it is ``ok`` the directory stays, and the changeset
        can be committed again. A commit is proposed to the workers: it becomes active at the next Safe Point,
        unless they cannot load it. ``warning`` says why it was not proposed.
        """

    def get_active_ref(self) -> Any:
        """Return the ref of the active revision."""
