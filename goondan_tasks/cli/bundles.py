"""Bundles on disk: ``goondan validate`` and ``goondan init``."""

import os
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from broker_config.settings import Settings
from goondan_tasks.bundle import Finding, inspect_bundle
from goondan_tasks.cli.options import BundleArgument, this_bundle
from goondan_tasks.cli.output import CONFIGURATION, Output, printable
from goondan_tasks.errors import ConfigError

_STYLES = {"error": "bold red", "warning": "bold yellow"}

#: the bundle that ``goondan init`` writes, and a call of its tool
_STARTER = Path(__file__).parent / "starter"
_STARTER_FILES = ("goondan.yaml", "tools/text.py")
_STARTER_CALL = """goondan call helper text__count '{"text": "two words"}'"""


class Format(StrEnum):
    """How findings are written; ``github`` is the form of annotations in a workflow's log."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def validate(
    bundle: BundleArgument = None,
    strict: Annotated[bool, typer.Option("--strict", help="Let warnings fail too.")] = False,
    form: Annotated[Format | None, typer.Option("--format", help="How to write the findings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Check a bundle, its references and its entry files; print all findings at once.

    Ends with 3 if there is an error (with --strict: or a warning), else with 0.
    """
    if as_json and form not in {None, Format.JSON}:
        raise typer.BadParameter("--json goes only with --format json.")
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


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to write it; made if it is not there.")
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Write a small bundle that runs: one agent with one tool. Files that are there are never overwritten."""
    files = [directory / name for name in _STARTER_FILES]
    try:
        if present := [str(file) for file in files if os.path.lexists(file)]:
            raise typer.BadParameter(f"{', '.join(present)} is there already; nothing has been written.")
        for name, file in zip(_STARTER_FILES, files, strict=True):
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as new:
                new.write((_STARTER / name).read_bytes())
    except OSError as error:
        raise ConfigError(
            f"The bundle cannot be written: {error}.", suggestion="Choose a directory that you may write."
        ) from error
    place = shlex.quote(str(directory))
    steps = [f"goondan validate {place}", f"goondan dev {place}", _STARTER_CALL]
    text = "\n".join(f"wrote {printable(str(file))}" for file in files)
    note = (
        f"Next:\n  {steps[0]}\n  {steps[1]}\n"
        f"In another terminal, after the export line that dev prints:\n  {steps[2]}"
    )
    document = {"bundle": str(directory), "files": [str(file) for file in files], "next": steps}
    Output(as_json).give(document, text, note)


def finding_text(finding: Finding) -> Text:
    """Write a finding as compilers do: place, level, code, what is wrong, and below what to do."""
    text = Text(printable(f"{finding.file}:{finding.line}: "))
    text.append(finding.level, style=_STYLES[finding.level])
    text.append(printable(f" {finding.code} {_what_is_wrong(finding)}"))
    text.append(printable(f"\n    {finding.suggestion}"), style="dim")
    return text


def _what_is_wrong(finding: Finding) -> str:
    """Write the message behind the resource and the path that it is about."""
    place = " ".join(part for part in (finding.resource, finding.path) if part)
    return f"{place}: {finding.message}" if place else finding.message


def counts(findings: Sequence[Finding]) -> str:
    """Write how many errors and warnings there are."""
    if not findings:
        return "no findings"
    errors = sum(finding.level == "error" for finding in findings)
    counts = {"error": errors, "warning": len(findings) - errors}
    return ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())


def _annotation(finding: Finding) -> str:
    """Write a workflow command; in its values ``%``, line ends, ``:`` and ``,`` have codes of their own."""
    place = f"file={_value(finding.file)},line={finding.line},title={_value(finding.code)}"
    return f"::{finding.level} {place}::{_data(f'{_what_is_wrong(finding)}. {finding.suggestion}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
