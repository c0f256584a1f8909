"""The files of a bundle as one YAML text."""

import re
from collections.abc import Mapping
from pathlib import Path

from goondan_tasks.cli.printable import on_one_line

#: comments, and then a directive such as ``%YAML 1.2``
_DIRECTIVE_FIRST = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?[\r\n])*%")


def one_text(files: Mapping[Path, str]) -> str:
    """Join texts, each behind the name of its file; a text that is alone stays as it is."""
    if len(files) == 1:
        return next(iter(files.values()))
    parts: list[str] = []
    for file, text in files.items():
        # directives stand behind an end, and an end behind a document, be it empty
        border = "---\n...\n" if _DIRECTIVE_FIRST.match(text) else "---\n"
        line_end = "" if text.endswith(("\n", "\r")) else "\n"
        parts.append(f"{border if parts else ''}# {on_one_line(str(file))}\n{text}{line_end}")
    return "".join(parts)
