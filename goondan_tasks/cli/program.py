"""The program ``goondan``: finds the command, runs it, and ends as DESIGN "Commands" says."""

import importlib
import io
import json
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from goondan_tasks.cli.commands import COMMANDS
from goondan_tasks.cli.worded_command import WordedCommand

_PROGRAM = "goondan"
_PACKAGE = "goondan-workers"
_HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """Imports a command's module when the command is run or completed; ``--help`` imports none."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a misspelt one gets a "did you mean"."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


def load_command(name: str) -> Any:
    """Import a command, and have it report its failures."""
    # by its name too: it knows errors of the settings and of Redis, which --help need not wait for
    reported = _imported("goondan_tasks.cli.failures:reported")
    single = typer.Typer(rich_markup_mode=None, add_completion=False)
    single.command(name, cls=WordedCommand, context_settings=_HELP_OPTIONS)(
        reported(_imported(COMMANDS[name].function))
    )
    return typer.main.get_command(single)


def make_app() -> typer.Typer:
    """Make the application: every command's name and summary, and none of the commands themselves."""
    # plain help: rich's needs its Markdown and its tracebacks, and twice the time
    app = typer.Typer(
        rich_markup_mode=None,
        cls=LazyGroup,
        no_args_is_help=True,
        callback=_goondan,
        context_settings=_HELP_OPTIONS,
    )
    for name, place in COMMANDS.items():
        app.command(name, help=place.summary)(_not_imported)
    return app


def main() -> NoReturn:
    """Run this process's command line, and end the process."""
    _mend_streams()
    as_json = "--json" in sys.argv[1:]
    command = typer.main.get_command(make_app())
    try:
        sys.exit(command.main(prog_name=_PROGRAM, standalone_mode=not as_json))
    except typer.TyperException as error:  # a usage error; people are told by typer itself
        described = {"code": "E_USAGE", "message": " ".join(error.format_message().split())}
        sys.stdout.write(json.dumps({"error": described}, indent=2) + "\n")
        sys.exit(error.exit_code)


def _mend_streams() -> None:
    """Let no character and no closed stream stop us: what cannot be encoded is written as an escape."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        version = _imported("importlib.metadata:version")
        typer.echo(f"{_PROGRAM} {version(_PACKAGE)}")
        raise typer.Exit


def _goondan(
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit."),
    ] = False,
) -> None:
    """Run the tool calls of LLM agents on workers, over a message queue."""


def _not_imported() -> None:
    """Stand for a command in ``goondan --help``."""


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
