"""Text that is safe on a terminal."""


def printable(text: str) -> str:
    """Write control characters, bidi overrides and lone surrogates as escapes; line breaks and tabs stay.

    What a tool, a name or another program's answer contains must not steer the reader's terminal.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def on_one_line(text: str) -> str:
    """Escape line breaks too, where a name in a row must not forge another row."""
    return printable(text.replace("\n", "\\n"))
