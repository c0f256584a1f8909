"""The rules of a Tool beyond the types of its fields (003 §2.3, §4.2, §13; DESIGN §3, §6).

The rules read the YAML's own values, not the validated resource: so a typing error in one field hides
none of the findings about the others.
"""

from collections.abc import Iterator
from typing import Any

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.json_values import Path
from goondan_tasks.names import SYSTEM_TOOL
from goondan_tasks.schema import SchemaError, compile_schema
from goondan_tasks.schema_references import member
from goondan_tasks.spelling import hint

_EXPORTS: Path = ("spec", "exports")
_SPEC: Path = ("spec",)


def tool_findings(tool: Declaration) -> Iterator[Finding]:
    """Yield what is wrong with a Tool's exports and run policies."""
    if tool.name == SYSTEM_TOOL:
        reserved = f"the name '{SYSTEM_TOOL}' is the system's own"
        error = FieldError(reserved, "Give the Tool another name.", ConfigCode.INVALID_NAME)
        yield tool.finding(("metadata", "name"), error)
    seen: dict[str, Path] = {}
    for path, export in tool.items(_EXPORTS):
        if not isinstance(export, dict):
            continue
        yield from _name_findings(tool, path, seen)
        yield from _parameter_findings(tool, path)
        yield from _policy_findings(tool, path)
        yield from _key_findings(tool, path)


def _name_findings(tool: Declaration, path: Path, seen: dict[str, Path]) -> Iterator[Finding]:
    place = (*path, "name")
    name = tool.value(place)
    if not isinstance(name, str):
        return
    first = seen.setdefault(name, place)
    if first != place:
        error = FieldError(
            f"the export '{name[:80]}' is there twice (first in line {tool.document.line_of(first)})",
            "Rename or remove one of the two.",
            ConfigCode.DUPLICATE_NAME,
        )
        yield tool.finding(place, error)
    if name != name.lower():
        error = FieldError(
            f"the export '{name[:80]}' has upper-case letters",
            f"Use lower case: '{name[:80].lower()}'.",
            ConfigCode.INVALID_NAME,
        )
        yield tool.finding(place, error, "warning")


def _parameter_findings(tool: Declaration, path: Path) -> Iterator[Finding]:
    place = (*path, "parameters")
    parameters = tool.value(place)
    if parameters is None:
        error = FieldError(
            "without 'parameters' any object is accepted",
            "Describe the arguments: parameters: {type: object, properties: {…}}.",
        )
        yield tool.finding(path, error, "warning")
    elif isinstance(parameters, dict):
        yield from _schema_findings(tool, place, parameters)


def _schema_findings(tool: Declaration, place: Path, parameters: dict[str, Any]) -> Iterator[Finding]:
    try:
        compile_schema(parameters)
    except SchemaError as error:
        reason = FieldError(
            f"no valid JSON Schema: {error.message}", "Correct it as JSON Schema 2020-12 says."
        )
        yield tool.finding((*place, *error.path), reason)
        return
    if "type" not in parameters:
        reason = FieldError("the parameters do not say 'type: object'", "Add 'type: object'.")
        yield tool.finding(place, reason, "warning")
    elif parameters["type"] != "object":
        reason = FieldError("the parameters must have the type object", "Write 'type: object'.")
        yield tool.finding((*place, "type"), reason)


def _policy_findings(tool: Declaration, path: Path) -> Iterator[Finding]:
    """Check the run policies that need each other, where the export or its Tool sets them."""
    retry, memory = _policy_path(tool, path, "retry"), _policy_path(tool, path, "memoryMb")
    if tool.value(retry) is not None and tool.value(_policy_path(tool, path, "idempotent")) is not True:
        error = FieldError(
            "only an idempotent export may be retried", "Add 'idempotent: true', or remove 'retry'."
        )
        yield tool.finding(retry, error)
    if tool.value(memory) is not None and tool.value(_policy_path(tool, path, "isolation")) != "process":
        error = FieldError("'memoryMb' needs a process of its own", "Add 'isolation: process'.")
        yield tool.finding(memory, error, "warning")


def _policy_path(tool: Declaration, path: Path, name: str) -> Path:
    """Return where a run policy of an export stands: on the export itself, else on its Tool."""
    own = (*path, name)
    return (*_SPEC, name) if tool.value(own) is None else own


def _key_findings(tool: Declaration, path: Path) -> Iterator[Finding]:
    """Check that ``idempotencyKey`` names arguments that exist."""
    properties = member(tool.value((*path, "parameters")), "properties")
    if not isinstance(properties, dict):
        return
    for place, name in tool.items(_policy_path(tool, path, "idempotencyKey")):
        if isinstance(name, str) and name not in properties:
            error = FieldError(
                f"'{name[:80]}' is no argument of the export '{tool.value((*path, 'name'))}'",
                hint(name, properties, "Declare it in the parameters."),
            )
            yield tool.finding(place, error)
