"""The check of a changed bundle: of exactly the files that the commit would have."""

import contextlib
import os
import posixpath
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from goondan_tasks.bundle import BoundTool, Bundle, Finding, inspect_bundle
from goondan_tasks.bundle.binding import Scope, base_package_root, bound_exports
from goondan_tasks.bundle.entries import ENTRY, is_code
from goondan_tasks.bundle.findings import ConfigCode
from goondan_tasks.bundle.inventory import bundle_files, is_document_name, read_inventory
from goondan_tasks.bundle.resources import ToolResource
from goondan_tasks.errors import ConfigError
from goondan_tasks.revisions.folder import Folder
from goondan_tasks.revisions.source import RevisionSource, write_revision
from goondan_tasks.revisions.workspace import changed_workspace

#: what the imports of all entry files may take together; more than one, so that the one that hangs is named
IMPORT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files of one revision are, by path. What a link leads to is what the link is."""

    #: files that declare resources, or could, as a link of such a name; and every link on the way to them
    documents: frozenset[str]
    #: files that may be run or imported, the entries among them; and every link on the way to them
    code: frozenset[str]
    #: the entry files of the bundle's Tools, Agents, Extensions and Connectors, as they are written and where
    #: they are: not the links between, for what stands for an entry allows code
    entries: frozenset[str]
    #: links that lead to a directory, nowhere, or out of the bundle
    odd_links: frozenset[str]

    @classmethod
    def of(cls, folder: Path, path: Path, scope: Scope, bundle: Bundle | None) -> "Layout":
        """Read it from ``folder``, without links in its own path; the bundle is ``path`` in it.

        Raises:
            OSError: a directory cannot be read.
        """
        found = list(Folder(folder).found())
        links = [item.path for item in found if item.kind == "link"]
        entries = [folder / entry for entry in _entries(scope, bundle)]
        code = [folder / item.path for item in found if is_code(item.path)]
        documents = _with_links({*bundle_files(folder), *bundle_files(path)}, folder)
        return cls(
            documents=documents | {link for link in links if is_document_name(link)},
            code=_with_links([*code, *entries], folder),
            entries=_inside_of(folder, _both_ends(entries)),
            odd_links=frozenset(link for link in links if not _is_file_inside(folder / link, folder)),
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """What validation says of one revision; paths start from the bundle's folder."""

    #: ``None`` if it has errors
    bundle: Bundle | None
    findings: list[Finding]
    #: which file declares what, by ``Kind/name``
    files: Mapping[str, str]
    layout: Layout
    #: what it declares, and the built-in package
    scope: Scope
    #: the exports of both, without the Agents' overrides
    exports: tuple[BoundTool, ...] = ()

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
            scope = Scope(read_inventory(path)[0], base_package_root())
            declared = scope.own.declarations if bundle else ()
            files = {it.label: _inside(it.document.file, folder) for it in declared}
            layout = Layout.of(folder, path, scope, bundle)
            return Checked(bundle, findings, files, layout, scope, tuple(_exports(scope)) if bundle else ())

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


def _entries(scope: Scope, bundle: Bundle | None) -> Iterator[str | Path]:
    """Yield the entries of a bundle as its resources and its Agents' overrides write them."""
    for declaration in scope.own.declarations:
        entry = declaration.value(ENTRY)
        if isinstance(entry, str) and entry and "\0" not in entry:
            yield posixpath.normpath(entry)
    if bundle is None:
        return
    for agent in bundle.agents:
        yield from (tool.entry_path for tool in bundle.bound_tools(agent).values())
        yield from (extension.entry_path for extension in bundle.bound_extensions(agent))


def _exports(scope: Scope) -> Iterator[BoundTool]:
    for package in filter(None, (scope.base, scope.own)):
        for declaration in package.of_kind("Tool"):
            if isinstance(declaration.resource, ToolResource):
                yield from bound_exports(declaration.resource, package.root)


def _both_ends(paths: Iterable[Path]) -> set[Path]:
    """Return paths, and where links in them lead."""
    # unlike Path.resolve, this goes on where links lead in a circle
    return {end for path in paths for end in (path, Path(os.path.realpath(path)))}


def _with_links(paths: Iterable[Path], folder: Path) -> frozenset[str]:
    """Return both ends of paths, and every link between, as far as they are inside ``folder``.

    A directory on the way may be a link, too.
    """
    found = _both_ends(paths)
    pending, seen = list(found), set[Path]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        pending.append(path.parent)
        place = Path(os.path.realpath(path.parent), path.name)
        with contextlib.suppress(OSError):  # it is no link
            pending.append(place.parent / place.readlink())
            found.add(place)
    return _inside_of(folder, found)


def _inside_of(folder: Path, paths: Iterable[Path]) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder))


def _is_file_inside(link: Path, folder: Path) -> bool:
    end = Path(os.path.realpath(link))
    return end.is_file() and end.is_relative_to(folder)
