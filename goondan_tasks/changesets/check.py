"""The check of a changed bundle: of exactly the files that the commit would have."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from goondan_tasks.bundle import Bundle, Finding, inspect_bundle
from goondan_tasks.bundle.findings import ConfigCode
from goondan_tasks.bundle.inventory import read_inventory
from goondan_tasks.errors import ConfigError
from goondan_tasks.revisions.folder import Folder
from goondan_tasks.revisions.source import RevisionSource, write_revision
from goondan_tasks.revisions.workspace import changed_workspace

#: what the imports of all entry files may take together; more than one, so that the one that hangs is named
IMPORT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What validation says of one revision; paths start from the bundle's folder."""

    #: ``None`` if it has errors
    bundle: Bundle | None
    findings: list[Finding]
    #: which file declares what, by ``Kind/name``
    files: Mapping[str, str]

    @property
    def errors(self) -> list[Finding]:
        """The findings for which it cannot be used."""
        return [finding for finding in self.findings if finding.level == "error"]


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """Validates revisions of one bundle, apart from where it is used."""

    source: RevisionSource
    #: the Swarm that counts, if one is named
    swarm: str | None = None

    def check(self, tree: str, *, import_entries: bool = True) -> Checked:
        """Return what validation says of the bundle in a tree.

        Entry files are imported, if at all, in child processes with limits.

        Raises:
            GitError, OSError: its files cannot be written down.
        """
        with tempfile.TemporaryDirectory(prefix="goondan-check-") as name:
            folder = Path(name).resolve()
            write_revision(self.source.tree_files(tree), Folder(folder))
            path = folder / self.source.inside
            bundle, found = inspect_bundle(path, import_entries=import_entries, import_seconds=IMPORT_SECONDS)
            findings = [_without(folder, finding) for finding in found]
            declared = read_inventory(path)[0].declarations if bundle else ()
            return Checked(bundle, findings, {it.label: _inside(it.document.file, folder) for it in declared})

    def errors(self, after: Checked, before: Checked) -> list[Finding]:
        """Return why a revision cannot take the place of another one."""
        if after.bundle is None or before.bundle is None:
            return after.errors
        try:
            lives_in = before.bundle.workspace_name(self.swarm)
        except ConfigError:
            return after.errors
        reason = changed_workspace(lives_in, after.bundle, self.swarm)
        return [*after.errors, *([_moved(after, reason)] if reason else [])]


def _moved(after: Checked, reason: str) -> Finding:
    package = after.bundle.package if after.bundle else None
    label = f"Package/{package.name}" if package else ""
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=reason,
        file=after.files.get(label) or next(iter(after.files.values()), "."),
        line=1,
        path="metadata.name",
        resource=label,
        suggestion=(
            "Keep the names of the Package and the Swarm; to change them a person commits with git, "
            "and restarts all workers."
        ),
    )


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


def _inside(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file
