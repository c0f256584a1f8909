"""An open changeset, and where it is kept: in a ref of its own, so git alone knows which there are.

``refs/goondan/changesets/<id>`` points to a commit without changes on top of the base. Its message says
who opened the changeset, why and where. The ref keeps the base from being collected as garbage, and travels
to other machines by the remote. There is no file beside it (000 §12.4).
"""

import json
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from goondan_tasks.messages import JsonObject, iso_time
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.remote import Remote
from goondan_tasks.revisions.repository import Author, Repository

_REFS = "refs/goondan/changesets/"
_ID = re.compile(r"cs-\d{1,15}-[0-9a-f]{8}")
_SUBJECT = "Open a changeset"


@dataclass(frozen=True, slots=True)
class Changeset:
    """A proposed change of the bundle."""

    changeset_id: str
    #: the commit that it is a change of
    base: str
    #: where its files are: the root of the repository, of which only the bundle's part is there
    directory: Path
    opened_at: str
    reason: str = ""
    agent: str | None = None
    instance_key: str | None = None

    @property
    def base_ref(self) -> str:
        """The base as a ref."""
        return str(BundleRef("git", self.base))

    def to_wire(self) -> JsonObject:
        """Return it as ``goondan changeset list --json`` prints it."""
        return {
            "changesetId": self.changeset_id,
            "baseRef": self.base_ref,
            "workdir": str(self.directory),
            "openedAt": self.opened_at,
            "reason": self.reason,
            "agentName": self.agent,
            "instanceKey": self.instance_key,
        }


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
        return [_parsed(*fields[at : at + 3]) for at in range(0, len(fields), 3)]

    def save(self, changeset: Changeset) -> None:
        """Keep a changeset, new or with another base.

        Raises:
            GitError: git or the remote refuses.
        """
        repository = self.repository
        about = {
            name: value
            for name, value in changeset.to_wire().items()
            if name not in {"baseRef", "changesetId"}
        }
        message = f"{_SUBJECT}\n\n{json.dumps(about)}\n"
        commit = repository.commit(
            f"{changeset.base}^{{tree}}", changeset.base, message, Author.of(changeset.agent)
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


def opened(changeset_id: str, base: str, directory: Path, milliseconds: float) -> Changeset:
    """Return a changeset that begins now."""
    return Changeset(changeset_id, base, directory, iso_time(milliseconds))


def rebased(changeset: Changeset, base: str) -> Changeset:
    """Return the changeset as one of another base."""
    return replace(changeset, base=base)


def _parsed(changeset_id: str, base: str, body: str) -> Changeset:
    about = json.loads(body)
    return Changeset(
        changeset_id,
        base,
        Path(about["workdir"]),
        about["openedAt"],
        about["reason"],
        about["agentName"],
        about["instanceKey"],
    )
