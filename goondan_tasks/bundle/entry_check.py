"""The check of a bundle's tool entries: each file is imported, its handlers laid beside the exports."""

import os
from collections.abc import Iterator
from pathlib import Path

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.entry_import import import_entries
from goondan_tasks.bundle.entry_probe import ProbeRecord
from goondan_tasks.bundle.entry_rules import ENTRY, entry_file
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Inventory
from goondan_tasks.spelling import hint

_IMPORT_HINT = "Keep the top of the file to imports and definitions; work and environment belong in handlers."


def entry_findings(inventory: Inventory) -> list[Finding]:
    """Import the entry of every Tool that has one, in child processes, and compare it with the exports."""
    tools = [
        (tool, file)
        for tool in inventory.of_kind("Tool")
        if tool.is_supported and (file := entry_file(tool, inventory.root))
    ]
    files = list(dict.fromkeys(file for _, file in tools))
    records = dict(zip(files, import_entries(files), strict=True))
    return [found for tool, file in tools for found in _findings(tool, records[file], inventory.folder)]


def _findings(tool: Declaration, record: ProbeRecord, folder: Path) -> Iterator[Finding]:
    if record.problem is not None:
        yield _problem(tool, record, folder)
        return
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


def _problem(tool: Declaration, record: ProbeRecord, folder: Path) -> Finding:
    """Place a problem in the entry file itself."""
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=str(record.problem),
        file=os.path.normpath(folder / str(tool.value(ENTRY))),
        line=record.line,
        path="spec.entry",
        resource=tool.label,
        suggestion=record.suggestion or _IMPORT_HINT,
    )
