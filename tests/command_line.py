"""Command lines of ``goondan``, as pages and container files write them, held against the real program."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from goondan_tasks.cli.program import COMMANDS, GROUPS, load_command

#: options that every command has
EVERYWHERE = frozenset({"--help", "--json"})
#: options that stand for settings
SETTINGS = frozenset({"--bundle", "--redis-url", "--swarm", "--workspace"})


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
    if words[0] in {"--version", "--install-completion"}:
        return None
    faults = (_fault_of(name, words[1:]) for name in _names_of(words))
    return next((fault for fault in faults if fault), None)


def _fault_of(name: str, words: Sequence[str]) -> str | None:
    if name in GROUPS:
        return None
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    given = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    negations = {option for parameter in _of_type(name, "option") for option in parameter.secondary_opts}
    unknown = sorted(given - options(name) - negations)
    return f"{name} has no option {unknown[0]!r}" if unknown else None


def _names_of(words: Sequence[str]) -> list[str]:
    """Return the names of the commands: of a group with its sub-commands, as in ``oauth apps|grants``."""
    group, *rest = words
    if group in GROUPS and rest and not rest[0].startswith("-"):
        return [f"{group} {name}" for name in rest[0].split("|")]
    return ["instances list" if group == "instances" else group]


def _of_type(name: str, kind: str) -> list[Any]:
    return [parameter for parameter in command(name).params if parameter.param_type_name == kind]
