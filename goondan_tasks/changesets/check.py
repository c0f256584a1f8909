"""The check of a changed bundle: of exactly the files that the commit would have."""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from goondan_tasks.bundle import Finding, inspect_bundle
from goondan_tasks.revisions.folder import Folder
from goondan_tasks.revisions.source import RevisionSource, write_revision


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """Validates revisions of one bundle, apart from where it is used."""

    source: RevisionSource

    def findings(self, tree: str) -> list[Finding]:
        """Return what validation says of the bundle in a tree; paths start from its folder.

        Entry files are imported, in child processes with limits.

        Raises:
            GitError, OSError: its files cannot be written down.
        """
        with tempfile.TemporaryDirectory(prefix="goondan-check-") as name:
            folder = Path(name).resolve()
            write_revision(self.source.tree_files(tree), Folder(folder))
            _, findings = inspect_bundle(folder / self.source.inside)
            return [_without(folder, finding) for finding in findings]


def _without(folder: Path, finding: Finding) -> Finding:
    """Take a folder that will be gone out of a finding."""

    def inside(text: str) -> str:
        return text.replace(f"{folder}/", "").replace(f"{folder}", "the changeset's directory")

    return replace(
        finding,
        message=inside(finding.message),
        file=inside(finding.file),
        suggestion=inside(finding.suggestion),
    )
