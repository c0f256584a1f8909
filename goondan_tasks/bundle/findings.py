"""What is wrong with a bundle: findings with file, line, code and suggestion (002 §12.1, 003 §13).

The codes are the documents' own (``E_CONFIG_*``). They have none for an entry file that stands there
but does not hold what its resource needs; that is ``E_CONFIG_SCHEMA_INVALID`` too.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Literal

from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import JsonObject

Level = Literal["error", "warning"]

#: findings that are told at once; nobody reads on, and a text of 1 MiB can hold 300,000 faults
MAX_FINDINGS = 1000


class ConfigCode(StrEnum):
    """The codes of findings."""

    PARSE_ERROR = "E_CONFIG_PARSE_ERROR"
    FILE_TOO_LARGE = "E_CONFIG_FILE_TOO_LARGE"
    TOO_MANY_DOCUMENTS = "E_CONFIG_TOO_MANY_DOCUMENTS"
    UNSUPPORTED_API_VERSION = "E_CONFIG_UNSUPPORTED_API_VERSION"
    UNKNOWN_KIND = "E_CONFIG_UNKNOWN_KIND"
    INVALID_NAME = "E_CONFIG_INVALID_NAME"
    DUPLICATE_NAME = "E_CONFIG_DUPLICATE_NAME"
    INVALID_REF = "E_CONFIG_INVALID_REF"
    REF_NOT_FOUND = "E_CONFIG_REF_NOT_FOUND"
    SCHEMA_INVALID = "E_CONFIG_SCHEMA_INVALID"
    ENTRY_NOT_FOUND = "E_CONFIG_ENTRY_NOT_FOUND"
    PACKAGE_DOC_POSITION = "E_CONFIG_PACKAGE_DOC_POSITION"
    PACKAGE_DOC_DUPLICATED = "E_CONFIG_PACKAGE_DOC_DUPLICATED"
    PACKAGE_NOT_INSTALLED = "E_CONFIG_PACKAGE_NOT_INSTALLED"


class FieldError(ValueError):
    """A value is wrong, said without its place: what validators raise and findings are made of."""

    def __init__(self, message: str, suggestion: str, code: ConfigCode = ConfigCode.SCHEMA_INVALID) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion
        self.code = code


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong (``error``) or doubtful (``warning``), and where."""

    level: Level
    code: str
    message: str
    file: str
    #: from 1
    line: int
    #: inside the resource, such as ``spec.exports[1].name``; empty for a whole file or resource
    path: str
    #: such as ``Tool/bash``; empty if the document does not say what it is
    resource: str
    suggestion: str

    def __str__(self) -> str:
        what = " ".join(part for part in (self.resource, self.path) if part)
        place = f"{self.file}:{self.line}: {self.level} {self.code}"
        return f"{place} {what}: {self.message}" if what else f"{place} {self.message}"

    def to_wire(self) -> JsonObject:
        """Return the finding as ``goondan validate --format json`` prints it (DESIGN §3)."""
        return asdict(self)


class BundleError(ConfigError):
    """The bundle cannot be used; ``findings`` holds every error and warning."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        errors = [finding for finding in findings if finding.level == "error"]
        lines = "\n".join(f"  {error}" for error in errors)
        super().__init__(f"The bundle has {len(errors)} error(s):\n{lines}", code=errors[0].code)
        self.suggestion = errors[0].suggestion if len(errors) == 1 else type(self).suggestion
        self.findings = tuple(findings)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings by file and line, each one once; of thousands keep the first errors."""
    unique = sorted(dict.fromkeys(findings), key=_place)
    kept = sorted(unique, key=lambda finding: finding.level)[:MAX_FINDINGS]
    if len(kept) == len(unique):
        return unique
    more = f"{len(unique) - len(kept)} more findings are not shown"
    kept.append(replace(kept[-1], message=more, suggestion="Correct the others first."))
    return sorted(kept, key=_place)


def _place(finding: Finding) -> tuple[str, int]:
    return finding.file, finding.line
