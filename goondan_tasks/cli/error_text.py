"""An error for people: what went wrong, what to do, and where there is more."""

from rich.text import Text

from goondan_tasks.cli.printable import printable


def error_text(label: str, message: str, suggestion: str | None, help_url: str | None) -> Text:
    """Write an error behind its label, each hint on a line of its own."""
    text = Text().append(printable(f"{label}: "), style="bold red").append(printable(message))
    for hint, value in (("What to do", suggestion), ("More", help_url)):
        if value is not None:
            text.append(f"\n{hint}: ", style="bold").append(printable(value))
    return text
