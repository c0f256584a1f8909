"""Everything that the files of one package declare, valid or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.bundle.declarations import Declaration, declare
from goondan_tasks.bundle.documents import parse_documents
from goondan_tasks.bundle.files import bundle_files, read_text
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding


@dataclass(frozen=True, slots=True)
class Inventory:
    """The declarations of a package."""

    #: the folder that paths in resources start from, as it was given
    folder: Path
    #: the same folder, absolute and without links
    root: Path
    #: all of them, in order of files and documents
    declarations: tuple[Declaration, ...]
    #: by kind and name; of two with the same, the first
    by_name: Mapping[tuple[str, str], Declaration]

    def find(self, kind: str, name: str) -> Declaration | None:
        """Return the declaration of a resource."""
        return self.by_name.get((kind, name))

    def of_kind(self, kind: str) -> list[Declaration]:
        """Return the declarations of a kind, one a name."""
        return [declaration for declaration in self.by_name.values() if declaration.kind == kind]


def read_inventory(path: Path) -> tuple[Inventory, list[Finding]]:
    """Read a package: a file, or a directory with everything in it that belongs to a bundle."""
    findings: list[Finding] = []
    found = tuple(_declarations(path, findings))
    by_name: dict[tuple[str, str], Declaration] = {}
    for declaration in found:
        first = by_name.setdefault((declaration.kind, declaration.name), declaration)
        if first is not declaration and declaration.name and declaration.kind != "Package":
            findings.append(_duplicate(declaration, first))
    findings += _package_findings([item for item in found if item.kind == "Package"])
    if not found and not findings:
        error = FieldError("the bundle holds no resource", "Write a goondan.yaml; `goondan demo` shows one.")
        findings.append(whole_file(path, error))
    folder = path if path.is_dir() else path.parent
    return Inventory(folder, folder.resolve(), found, by_name), findings


def _declarations(path: Path, findings: list[Finding]) -> Iterator[Declaration]:
    """Yield what the files declare; what cannot be read goes to ``findings``."""
    for file in bundle_files(path):
        text, faults = read_text(file)
        documents, syntax_faults = parse_documents(text, str(file))
        findings += [whole_file(file, fault.error, fault.line) for fault in (*faults, *syntax_faults)]
        for document in documents:
            declaration, field_findings = declare(document)
            findings += field_findings
            if declaration is not None:
                yield declaration


def _duplicate(second: Declaration, first: Declaration) -> Finding:
    place = f"{first.document.file}:{first.document.line_of(('metadata', 'name'))}"
    error = FieldError(
        f"{second.label} is declared twice (first in {place})",
        "Rename or remove one of the two.",
        ConfigCode.DUPLICATE_NAME,
    )
    return second.finding(("metadata", "name"), error)


def _package_findings(packages: Sequence[Declaration]) -> Iterator[Finding]:
    """Check that the Package is one, and the first document of its file."""
    for package in packages:
        if package is not packages[0]:
            yield _second_package(package, packages[0])
        elif package.document.index > 0:
            error = FieldError(
                "the Package must be the first document of its file",
                "Move it to the top of the file.",
                ConfigCode.PACKAGE_DOC_POSITION,
            )
            yield package.finding(("kind",), error)


def _second_package(second: Declaration, first: Declaration) -> Finding:
    error = FieldError(
        f"a bundle has one Package (the first is in {first.document.file})",
        "Remove one of them, or validate the two folders on their own.",
        ConfigCode.PACKAGE_DOC_DUPLICATED,
    )
    return second.finding(("kind",), error)


def whole_file(file: Path, error: FieldError, line: int = 1) -> Finding:
    """Return the finding that ``error`` is in a file, of whatever resource."""
    return Finding("error", error.code.value, error.message, str(file), line, "", "", error.suggestion)
