"""What Extensions, and handlers of the older version, are given to change their bundle with (000 §12.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.party import Party
from goondan_tasks.changesets.results import CommitResult


class SwarmBundleApi(Protocol):
    """The bundle, as one agent in one instance may change it.

    All of it blocks in plain code, and is a coroutine in ``async`` code. The answers are JSON objects in the
    documents' form.
    """

    def open_changeset(self, reason: str | None = None) -> Any:
        """Open a changeset; return ``{changesetId, baseRef, workdir, hint}``.

        ``workdir`` is inside the instance's own, so that the built-in tools reach it.

        Raises:
            ChangesetError: the policy does not allow changesets, or git cannot.
        """

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> Any:
        """Commit a changeset.

        Return ``{status, changesetId, baseRef?, newRef?, summary?, error?, warning?}``.
        ``status`` is ``ok``, ``rejected``, ``conflict`` or ``failed``. Unless it is ``ok`` the directory
        stays, and the changeset can be committed again. What is committed is proposed: it becomes active at
        the next Safe Point, unless the workers cannot load it. ``warning`` says why it is not proposed.
        """

    def get_active_ref(self) -> Any:
        """Return the ref of the revision that is active now."""


@dataclass(frozen=True, slots=True)
class AgentBundle:
    """A :class:`SwarmBundleApi` that blocks."""

    changesets: Changesets
    party: Party
    active_ref: Callable[[], str]
    #: is told what has come of a commit
    tell: Callable[[CommitResult], None]
    #: says why workers could not load a revision, if they could not
    failure_of: Callable[[str], str | None]

    def open_changeset(self, reason: str | None = None) -> dict[str, Any]:
        """Open a changeset in the instance's workdir; see :class:`SwarmBundleApi`."""
        opened = self.changesets.open(self.party, reason or "")
        warning = self.failure_of(opened.base_ref)
        hint = opened.hint.model_copy(update={"warning": warning})
        return opened.model_copy(update={"hint": hint}).to_wire()

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> dict[str, Any]:
        """Commit one that was opened in this instance; see :class:`SwarmBundleApi`."""
        result = self.changesets.commit(changeset_id, message or "", self.party)
        self.tell(result)
        return result.to_wire()

    def get_active_ref(self) -> str:
        """Return the ref of the revision that is active now."""
        return self.active_ref()
