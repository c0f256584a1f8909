"""What the commands about changesets share: the bundle in its repository, and how outcomes are told."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import typer

from broker_config.settings import Settings
from goondan_tasks.changesets.api import (
    ChangesetError,
    ChangeSummary,
    CommitError,
    CommitResult,
    RollbackResult,
)
from goondan_tasks.changesets.changesets import Changesets, to_nobody
from goondan_tasks.cli.activation import Patience, warn
from goondan_tasks.cli.error_text import error_text
from goondan_tasks.cli.exit_codes import exit_code_of
from goondan_tasks.cli.followers import Followers
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import on_one_line
from goondan_tasks.cli.selection import chosen_bundle
from goondan_tasks.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.revisions.checkouts import RevisionSource


def source_of(settings: Settings) -> RevisionSource:
    """Return where the revisions of the chosen bundle come from: it, or this directory.

    Raises:
        ConfigError: no bundle is chosen.
        GitError: it is in a repository that cannot be used.
    """
    return RevisionSource.of(chosen_bundle(settings), settings.bundle_remote)


def changesets_of(settings: Settings, followers: Followers | None = None) -> Changesets:
    """Return the changesets of the chosen bundle, whose commits ``followers`` are told of.

    Raises:
        ConfigError: no bundle is chosen.
        ChangesetError, GitError: it is in no repository that can be used.
    """
    source = source_of(settings)
    locks, announce = (followers.locks(), followers.announce) if followers else ((), to_nobody)
    return Changesets.of(source, locks, announce, swarm=settings.swarm, help_url=settings.help_url)


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
    if summary.is_empty:
        output.note("Nothing was changed: no new revision was made.")
    kinds = (
        ("M", summary.files_changed),
        ("A", summary.files_added),
        ("D", summary.files_deleted),
    )
    for letter, paths in kinds:
        for path in paths:
            output.print(f"{letter} {on_one_line(path)}")


def show_committed(
    result: CommitResult | RollbackResult,
    summary: ChangeSummary | None,
    followers: Followers,
    *,
    patience: Patience,
    output: Output,
) -> None:
    """Tell what was committed, and what the workers make of it; end the command if that is not well.

    Raises:
        typer.Exit: the revision cannot be loaded, or nobody has loaded it in time.
    """
    if not output.as_json and summary is not None:
        show_summary(f"{result.new_ref}", summary, output)
    warning, activation = result.warning, None
    if warning is None and summary is not None and not summary.is_empty:
        try:
            activation = patience.outcome(followers, f"{result.new_ref}")
        except (BrokerUnreachableError, ConfigError) as error:
            warning = f"What becomes of it is not known: {error}"
    if output.as_json:
        told = {"activation": activation.to_wire()} if activation else {}
        output.document({**result.model_copy(update={"warning": warning}).to_wire(), **told})
    elif warning is not None:
        warn(warning, output)
    if activation is not None:
        patience.end(activation, output)


def refuse(error: CommitError, output: Output) -> NoReturn:
    """Tell people why nothing was committed (a program has been told), and end the command.

    Raises:
        typer.Exit: always.
    """
    if not output.as_json:
        output.note(error_text("Error", f"{error.code}: {error.message}", error.suggestion, error.help_url))
    raise typer.Exit(exit_code_of(error.code))
