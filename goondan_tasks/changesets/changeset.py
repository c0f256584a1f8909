"""An open changeset, and where it is kept: in a ref of its own, so git alone knows which there are.

``refs/goondan/changesets/<id>`` points to a commit without changes on top of the base. Its message says
who opened the changeset, why and where. The ref keeps the base from being collected as garbage, and travels
to other machines by the remote. There is no file beside it (000 §12.4).
"""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.messages import WireModel
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.remote import Remote
from goondan_tasks.revisions.repository import Author, Repository

_REFS = "refs/goondan/changesets/"
_ID = re.compile(r"cs-\d{1,15}-[0-9a-f]{8}")
_SUBJECT = "Open a changeset"


class Changeset(WireModel):
    """A proposed change of the bundle, as ``goondan changeset list --json`` prints it."""

    changeset_id: str
    #: the revision that it is a change of
    base_ref: str
    #: where its files are: the root of the repository, of which only the bundle's part is there
    workdir: Path
    opened_at: str
    reason: str = ""
    agent_name: str | None = None
    instance_key: str | None = None

    @property
    def base(self) -> str:
        """The commit of the base."""
        return BundleRef.parse(self.base_ref).digest

    def rebased(self, commit: str) -> Self:
        """Return the changeset as one of another base."""
        return self.model_copy(update={"base_ref": str(BundleRef("git", commit))})


def new_changeset_id(milliseconds: float) -> str:
    """Make an id: when it was opened, and eight random hex digits."""
    return f"cs-{milliseconds:.0f}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class OpenChangesets:
    """The open changesets of a repository. With a remote, those there count."""

    repository: Repository
    remote: Remote | None = None

    def find(self, changeset_id: str) -> Changeset | None:
        """Return an open changeset, or ``None``; whatever is no id is nobody's.

        Raises:
            GitError: the remote cannot be reached.
        """
        if _ID.fullmatch(changeset_id) is None:
            return None
        return next((item for item in self.all() if item.changeset_id == changeset_id), None)

    def all(self) -> list[Changeset]:
        """Return all of them, the oldest first; raises as :meth:`find` does."""
        if self.remote is not None:
            self.remote.mirror(_REFS)
        form = "%(refname:lstrip=3)%00%(parent)%00%(contents:body)%00"
        listed = self.repository.git.run("for-each-ref", f"--format={form}", _REFS).decode("utf-8", "replace")
        fields = listed.replace("\0\n", "\0").split("\0")[:-1]
        parsed = [_parsed(*fields[at : at + 3]) for at in range(0, len(fields), 3)]
        return [changeset for changeset in parsed if changeset is not None]

    def save(self, changeset: Changeset) -> None:
        """Keep a changeset, new or with another base.

        Raises:
            GitError: git or the remote refuses.
        """
        repository = self.repository
        message = f"{_SUBJECT}\n\n{changeset.model_dump_json(by_alias=True)}\n"
        commit = repository.commit(
            f"{changeset.base}^{{tree}}", changeset.base, message, Author.of(changeset.agent_name)
        )
        ref = _REFS + changeset.changeset_id
        repository.set_ref(ref, commit, expected=repository.commit_of(ref) or "")
        if self.remote is not None:
            self.remote.push(commit, ref, force=True)

    def delete(self, changeset: Changeset) -> None:
        """Forget a changeset; raises as :meth:`save` does."""
        ref = _REFS + changeset.changeset_id
        if self.remote is not None:
            self.remote.delete(ref)
        self.repository.delete_ref(ref)


def _parsed(changeset_id: str, base: str, body: str) -> Changeset | None:
    """Read a ref; ``None`` if it is not one of ours: others may write into the remote, too."""
    if _ID.fullmatch(changeset_id) is None:
        return None
    try:
        told = Changeset.model_validate_json(body)
        # whatever it says: no directory of another name is ever removed
        place = {"changeset_id": changeset_id, "workdir": told.workdir.with_name(changeset_id)}
        return told.model_copy(update={**place, "base_ref": str(BundleRef.parse(f"git:{base}"))})
    except (ValueError, BundleRevisionUnavailableError):
        return None
