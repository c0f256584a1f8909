"""Asking a person before much is changed."""

import sys

import typer

from goondan_tasks.cli.output import Output


def confirm(question: str, output: Output, *, is_confirmed: bool) -> None:
    """Go on if the person says so.

    Raises:
        typer.BadParameter: nobody can be asked.
        typer.Abort: the person does not want it.
    """
    if is_confirmed:
        return
    if not can_ask(output):
        raise typer.BadParameter(f"{question}: say --yes, nobody can be asked here.")
    typer.confirm(f"{question}?", abort=True, err=True)


def can_ask(output: Output) -> bool:
    """Say whether there is a person to be asked."""
    return not output.as_json and sys.stdin is not None and sys.stdin.isatty()
