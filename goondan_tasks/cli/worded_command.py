"""A command whose usage errors are told in our words: typer's are pydantic's."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

from broker_config.value_faults import fault_text
from goondan_tasks.cli.optional_values import with_values
from goondan_tasks.spelling import closest

_QUOTED = re.compile("'([^']*)'")


class WordedCommand(TyperCommand):
    """Says what an argument or option must be, and which word was most likely meant."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Read the command line.

        Raises:
            typer.BadParameter: a value is none that its argument or option takes.
        """
        try:
            return super().make_context(*args, **kwargs)
        except typer.BadParameter as error:
            faults = getattr(error.__cause__, "errors", None)
            if faults is not None:  # the cause is pydantic's, which --help need not import
                error.message = "; ".join(_words(fault_text(fault, shows_value=True)) for fault in faults())
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        return super().parse_args(ctx, with_values(args, self.params))


def _words(text: str) -> str:
    """Word typer's own "is not one of" as all the others are, with the choice that was meant."""
    if " is not one of " not in text:
        return f"{text}."
    given, *choices = _QUOTED.findall(text)
    meant = closest(given, choices)
    guess = "" if meant is None else f" Did you mean {meant}?"
    return f"must be one of {', '.join(choices)}; {given!r} is not.{guess}"
