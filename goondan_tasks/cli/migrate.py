"""``goondan migrate``: a bundle of the older version of the format, rewritten for today's."""

from pathlib import Path
from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.cli.exit_codes import CONFIGURATION
from goondan_tasks.cli.file_replacement import replace_files
from goondan_tasks.cli.finding_view import counts, finding_text
from goondan_tasks.cli.one_text import one_text
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.selection import this_bundle
from goondan_tasks.migration import Migration, migrate_bundle


def migrate(
    bundle: Annotated[
        Path | None,
        typer.Argument(
            metavar="BUNDLE", help="A directory or file; else GOONDAN_BUNDLE, else this directory."
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write the files in place.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the files and findings as one JSON document.")
    ] = False,
) -> None:
    """Rewrite a bundle's older resources for today's version of the format; comments and order stay.

    Without --write the whole bundle is printed as one file. Resources that cannot be rewritten stay as they
    are, and are told; then it ends with 3, else with 0. Python files are never changed.
    """
    path = bundle or Settings.load().bundle or this_bundle()
    migration = migrate_bundle(path)
    if write:
        replace_files({file: migration.files[file] for file in migration.changed})
    output = Output(as_json)
    if as_json:
        output.document(_wire(migration, is_written=write))
    else:
        if not write:
            output.stream([one_text(migration.files).encode()])
        for finding in migration.findings:
            output.note(finding_text(finding))
        done = "written" if write else "to be changed"
        share = f"{len(migration.changed)} of {len(migration.files)} files"
        output.note(f"{path}: {share} {done}, {counts(migration.findings)}")
    if any(finding.level == "error" for finding in migration.findings):
        raise typer.Exit(CONFIGURATION)


def _wire(migration: Migration, *, is_written: bool) -> dict[str, object]:
    return {
        "written": is_written,
        "files": [
            {"file": str(file), "changed": file in migration.changed, "text": text}
            for file, text in migration.files.items()
        ],
        "findings": [finding.to_wire() for finding in migration.findings],
    }
