"""``goondan validate``: every finding about a bundle, with file, line, code and suggestion."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.bundle import Finding, inspect_bundle
from goondan_tasks.cli.exit_codes import CONFIGURATION
from goondan_tasks.cli.finding_view import counts, finding_text, what_is_wrong
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.selection import this_bundle


class Format(StrEnum):
    """How findings are written; ``github`` is the form of annotations in a workflow's log."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def validate(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE", help="A directory or file; else GOONDAN_BUNDLE, else this directory."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
    form: Annotated[Format, typer.Option("--format", help="How to write the findings.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Check a bundle, its references and its entry files; print all findings at once.

    Ends with 3 if there is an error (with --strict: or a warning), else with 0.
    """
    path = bundle or Settings.load().bundle or this_bundle()
    _, findings = inspect_bundle(path)
    is_valid = not any(finding.level == "error" or strict for finding in findings)
    output = Output(as_json or form is Format.JSON)
    if output.as_json:
        output.document({"valid": is_valid, "findings": [finding.to_wire() for finding in findings]})
    else:
        for finding in findings:
            output.print(_annotation(finding) if form is Format.GITHUB else finding_text(finding))
        output.note(f"{path}: {counts(findings)}")
    if not is_valid:
        raise typer.Exit(CONFIGURATION)


def _annotation(finding: Finding) -> str:
    """Write a workflow command; in its values ``%``, line ends, ``:`` and ``,`` have codes of their own."""
    place = f"file={_value(finding.file)},line={finding.line},title={_value(finding.code)}"
    return f"::{finding.level} {place}::{_data(f'{what_is_wrong(finding)}. {finding.suggestion}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
