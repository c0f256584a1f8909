"""The merge of two versions of one file, line by line (``git merge-file``), and the marks of a conflict."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.revisions.repository import Entry, Repository

#: ``git merge-file`` ends with the number of conflicts, up to this; above it stands for an error
_MOST_CONFLICTS = 127


@dataclass(frozen=True, slots=True)
class ContentMerge:
    """Merges files of one changeset with those of the branch."""

    repository: Repository
    changeset_id: str

    def __call__(self, path: str, base: Entry | None, ours: Entry, theirs: Entry) -> tuple[str, bool] | None:
        """Return the merged blob, and whether it is clean; ``None`` if these are no lines of text."""
        names = ("ours", "base", "theirs")
        with tempfile.TemporaryDirectory(prefix="goondan-merge-") as folder:
            for name, entry in zip(names, (ours, base, theirs), strict=True):
                Path(folder, name).write_bytes(self.repository.blob(entry.blob) if entry else b"")
            labels = [part for label in (self._label, "base", "branch") for part in ("-L", label)]
            files = [str(Path(folder, name)) for name in names]
            status, merged = self.repository.git.status(
                "merge-file", "-p", *labels, *files, accepted=range(256)
            )
        if status > _MOST_CONFLICTS:
            return None
        return self.repository.write_blob(merged), status == 0

    @property
    def _label(self) -> str:
        return f"changeset {self.changeset_id}"

    def is_marked(self, data: bytes) -> bool:
        """Say whether a file still has marks that a merge for this changeset has left."""
        return f"<<<<<<< {self._label}".encode() in data.splitlines()
