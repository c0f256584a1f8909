"""A finding about a bundle, for people."""

from collections.abc import Sequence

from rich.text import Text

from goondan_tasks.bundle import Finding
from goondan_tasks.cli.printable import printable

_STYLES = {"error": "bold red", "warning": "bold yellow"}


def finding_text(finding: Finding) -> Text:
    """Write a finding as compilers do: place, level, code, what is wrong, and below what to do."""
    text = Text(printable(f"{finding.file}:{finding.line}: "))
    text.append(finding.level, style=_STYLES[finding.level])
    text.append(printable(f" {finding.code} {what_is_wrong(finding)}"))
    text.append(printable(f"\n    {finding.suggestion}"), style="dim")
    return text


def what_is_wrong(finding: Finding) -> str:
    """Write the message behind the resource and the path that it is about."""
    place = " ".join(part for part in (finding.resource, finding.path) if part)
    return f"{place}: {finding.message}" if place else finding.message


def counts(findings: Sequence[Finding]) -> str:
    """Write how many errors and warnings there are."""
    errors = sum(finding.level == "error" for finding in findings)
    return (
        f"{_many(errors, 'error')}, {_many(len(findings) - errors, 'warning')}" if findings else "no findings"
    )


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
