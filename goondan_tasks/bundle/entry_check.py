"""The check of a bundle's entries: each file is imported, a tool's handlers laid beside its exports."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.entry_import import import_entries
from goondan_tasks.bundle.entry_probe import EntryKind, ProbeRecord
from goondan_tasks.bundle.entry_rules import ENTRY, entry_file
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Inventory
from goondan_tasks.entry import IMPORT_HINT
from goondan_tasks.spelling import hint

_KINDS: Mapping[str, EntryKind] = {"Tool": "tool", "Agent": "agent", "Extension": "extension"}


def entry_findings(inventory: Inventory, *, seconds: float | None = None) -> list[Finding]:
    """Import the entry of every Tool, Agent and Extension that has one, in child processes.

    The handlers of a Tool are compared with its exports. What is not imported after ``seconds`` has failed.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    return [found for kind in _KINDS for found in _kind_findings(kind, inventory, deadline)]


def _kind_findings(kind: str, inventory: Inventory, deadline: float) -> Iterator[Finding]:
    declarations = [
        (declaration, file)
        for declaration in inventory.of_kind(kind)
        if (file := entry_file(declaration, inventory.root))
    ]
    files = list(dict.fromkeys(file for _, file in declarations))
    records = dict(zip(files, import_entries(files, kind=_KINDS[kind], deadline=deadline), strict=True))
    for declaration, file in declarations:
        record = records[file]
        if record.problem is not None:
            yield _problem(declaration, record, inventory.folder)
        elif kind == "Tool":
            yield from _handler_findings(declaration, record)


def _handler_findings(tool: Declaration, record: ProbeRecord) -> Iterator[Finding]:
    exports = {name: path for path, name in _export_names(tool)}
    for name, path in exports.items():
        if name not in record.handlers:
            yield tool.finding(path, _missing(name, record.handlers))
    for name in record.handlers:
        if name not in exports:
            error = FieldError(
                f"the handler '{name[:80]}' has no export", "Export it, or remove the handler."
            )
            yield tool.finding(("spec", "exports"), error, "warning")


def _export_names(tool: Declaration) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for path, _ in tool.items(("spec", "exports")):
        name = tool.value((*path, "name"))
        if isinstance(name, str):
            yield (*path, "name"), name


def _missing(name: str, handlers: tuple[str, ...]) -> FieldError:
    suggestion = f"Add it to 'handlers'. {hint(name, handlers, '')}".strip()
    return FieldError(f"the entry has no handler '{name[:80]}'", suggestion)


def _problem(declaration: Declaration, record: ProbeRecord, folder: Path) -> Finding:
    """Place a problem in the entry file itself."""
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=str(record.problem),
        file=os.path.normpath(folder / str(declaration.value(ENTRY))),
        line=record.line,
        path="spec.entry",
        resource=declaration.label,
        suggestion=record.suggestion or IMPORT_HINT,
    )
