"""An error for people: what went wrong, what to do, and where there is more."""

from rich.text import Text

from goondan_tasks.cli.printable import printable
from goondan_tasks.errors import HandoffError, ToolError
from goondan_tasks.messages import ToolCallError

_GENERAL = (HandoffError, ToolError)
#: the codes of every exception that has none of its own: its message alone may be no more than a key's name
_GENERAL_CODES = {kind.code for kind in _GENERAL}
_GENERAL_NAMES = {kind.__name__ for kind in _GENERAL}


def result_error_text(error: ToolCallError) -> Text:
    """Write the error of a result, with its exception's class where the code does not say what it was."""
    return error_text(error.code, named_message(error), error.suggestion, error.help_url)


def named_message(error: ToolCallError) -> str:
    """Return the message, behind the class of an exception without a code: ``KeyError: 'path'``."""
    is_named = error.code in _GENERAL_CODES and error.name not in _GENERAL_NAMES
    return f"{error.name}: {error.message}" if is_named else error.message


def error_text(label: str, message: str, suggestion: str | None, help_url: str | None) -> Text:
    """Write an error behind its label, each hint on a line of its own."""
    text = Text().append(printable(f"{label}: "), style="bold red").append(printable(message))
    for hint, value in (("What to do", suggestion), ("More", help_url)):
        if value is not None:
            text.append(f"\n{hint}: ", style="bold").append(printable(value))
    return text
