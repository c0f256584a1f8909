"""An Agent's changes to a Tool it uses: ``overrides`` beside a selector (DESIGN §6)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from goondan_tasks.bundle.entry_rules import entry_error
from goondan_tasks.bundle.field_findings import field_faults
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.resources import ToolResource
from goondan_tasks.json_values import Path as FieldPath
from goondan_tasks.messages import JsonObject
from goondan_tasks.schema import SchemaError, compile_schema

Faults = list[tuple[FieldPath, FieldError]]


def overridden(tool: ToolResource, overrides: JsonObject, root: Path) -> tuple[ToolResource | None, Faults]:
    """Return the Tool as the Agent wants it, and what is wrong with that, by path in the Tool."""
    data = merged(tool.model_dump(by_alias=True, exclude_unset=True), overrides)
    try:
        changed = type(tool).model_validate(data)
    except ValidationError as error:
        return None, [(fault.path, fault.error) for fault in field_faults(error, type(tool), data)]
    return changed, list(_faults(tool, changed, root))


def merged(original: Any, changes: Any) -> Any:
    """Lay ``changes`` over ``original`` (RFC 7396): objects merge, a null removes, all else replaces."""
    if not isinstance(changes, dict):
        return changes
    result = dict(original) if isinstance(original, dict) else {}
    for name, change in changes.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _faults(tool: ToolResource, changed: ToolResource, root: Path) -> Iterator[tuple[FieldPath, FieldError]]:
    if changed.name != tool.name:
        yield ("metadata", "name"), FieldError("overrides cannot rename a Tool", "Remove the name from them.")
    if changed.spec.entry != tool.spec.entry and (error := entry_error(changed.spec.entry, root)):
        yield ("spec", "entry"), error
    if changed.spec.exports != tool.spec.exports:
        yield from _export_faults(changed)


def _export_faults(tool: ToolResource) -> Iterator[tuple[FieldPath, FieldError]]:
    names = [export.name for export in tool.spec.exports]
    for index, export in enumerate(tool.spec.exports):
        place: FieldPath = ("spec", "exports", index)
        if export.name in names[:index]:
            message = f"the export '{export.name}' is there twice"
            yield (*place, "name"), FieldError(message, "Rename one.", ConfigCode.DUPLICATE_NAME)
        try:
            compile_schema(export.parameters)
        except SchemaError as error:
            message = f"no valid JSON Schema: {error.message}"
            yield (*place, "parameters", *error.path), FieldError(message, "Correct the schema.")
