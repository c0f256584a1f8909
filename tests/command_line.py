"""Command lines of ``goondan``, as pages and container files write them, held against the real program."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from goondan_tasks.cli.commands import COMMANDS
from goondan_tasks.cli.program import load_command

#: options that every command has
EVERYWHERE = frozenset({"--help", "--json"})
#: options that stand for settings
SETTINGS = frozenset({"--bundle", "--redis-url", "--swarm"})


@cache
def command(name: str) -> Any:
    """Return the command ``name`` as the program runs it."""
    return load_command(name)


def options(name: str) -> set[str]:
    """Return the options of a command, the short ones included; of ``--x / --no-x`` the first."""
    return {"--help"} | {option for parameter in _of_type(name, "option") for option in parameter.opts}


def arguments(name: str) -> list[str]:
    """Return the arguments of a command as its help writes them."""
    return [parameter.metavar or parameter.name.upper() for parameter in _of_type(name, "argument")]


def fault_of(words: Sequence[str]) -> str | None:
    """Say what is wrong with the words after ``goondan``: the command, or one of its options."""
    if words[0] == "--version":
        return None
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]!r}"
    given = {word.partition("=")[0] for word in words[1:] if word.startswith("--") and word != "--"}
    negations = {option for parameter in _of_type(words[0], "option") for option in parameter.secondary_opts}
    unknown = sorted(given - options(words[0]) - negations)
    return f"{words[0]} has no option {unknown[0]!r}" if unknown else None


def _of_type(name: str, kind: str) -> list[Any]:
    return [parameter for parameter in command(name).params if parameter.param_type_name == kind]
