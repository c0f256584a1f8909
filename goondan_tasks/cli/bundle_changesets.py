"""What the commands about changesets share: the bundle in its repository, and how outcomes are told."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from broker_config.settings import Settings
from goondan_tasks.changesets.changeset_error import ChangesetError
from goondan_tasks.changesets.changesets import Changesets
from goondan_tasks.changesets.results import ChangeSummary, CommitError
from goondan_tasks.cli.error_text import error_text
from goondan_tasks.cli.exit_codes import exit_code_of
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.cli.selection import chosen_bundle
from goondan_tasks.revisions.source import RevisionSource

BundlePath = Annotated[
    Path | None,
    typer.Option("--bundle", metavar="PATH", help="The bundle; else GOONDAN_BUNDLE, else this directory."),
]
SwarmName = Annotated[
    str | None,
    typer.Option("--swarm", metavar="NAME", help="The Swarm of the bundle; else GOONDAN_SWARM."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, logs on stderr.")]


def changesets_of(settings: Settings) -> Changesets:
    """Return the changesets of the chosen bundle.

    Raises:
        ConfigError: no bundle is chosen.
        ChangesetError, GitError: it is in no repository that can be used.
    """
    return Changesets.of(RevisionSource.of(chosen_bundle(settings), settings.bundle_remote))


@contextlib.contextmanager
def told_by_git() -> Iterator[None]:
    """Let a file that cannot be read or written be a failure like git's own.

    Raises:
        ChangesetError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise ChangesetError(str(error), code="GIT_ERROR") from error


def show_summary(head: str, summary: ChangeSummary, output: Output) -> None:
    """Write which files a commit has changed."""
    output.print(head)
    kinds = (
        ("M", summary.files_changed),
        ("A", summary.files_added),
        ("D", summary.files_deleted),
    )
    for letter, paths in kinds:
        for path in paths:
            output.print(f"{letter} {on_one_line(path)}")


def refuse(error: CommitError, output: Output) -> NoReturn:
    """Tell people why nothing was committed (a program has been told), and end the command.

    Raises:
        typer.Exit: always.
    """
    if not output.as_json:
        output.note(error_text("Error", f"{error.code}: {error.message}", error.suggestion, None))
    raise typer.Exit(exit_code_of(error.code))
