"""YAML text as documents that know the line of every value.

The text is read event by event, so that hostile input (deep nesting, aliases that multiply) is
refused before it costs anything. Scalars follow the core schema of YAML 1.2: ``no`` and ``22:22`` are
strings, dates too; tags of programming languages are refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.reader import Reader

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.nodes import Composer, Node, TextFault, Unreadable, parse_fault
from goondan_tasks.json_values import Path

MAX_DOCUMENTS = 100

# libyaml, where PyYAML was built with it, is ten times faster and yields the same events
_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document of a file."""

    file: str
    #: its place among the file's documents that are not empty, from 0
    index: int
    node: Node

    @property
    def data(self) -> Any:
        """The document as plain dicts, lists and scalars."""
        return self.node.data

    def line_of(self, path: Path) -> int:
        """Return the line of the value at ``path``, or of the last part of it that exists."""
        node = self.node
        for step in path:
            part = node.parts.get(step)
            if part is None:
                break
            node = part
        return node.line


def parse_documents(text: str, file: str) -> tuple[list[Document], list[TextFault]]:
    """Read the documents of ``text`` up to the first place that is no YAML; empty ones are left out."""
    composer = Composer()
    documents: list[Document] = []
    fatal: list[TextFault] = []
    try:
        for index, node in enumerate(composer.documents(_events(text))):
            if index == MAX_DOCUMENTS:
                fatal.append(TextFault(node.line, _too_many()))
                break
            if node.data is not None:
                documents.append(Document(file, len(documents), node))
    except Unreadable as error:
        fatal.append(error.text_fault)
    except yaml.MarkedYAMLError as error:
        fatal.append(syntax_fault(error, text))
    return documents, [*composer.faults, *fatal]


def _events(text: str) -> Iterator[yaml.Event]:
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable:
        line = text.count("\n", 0, unprintable.start()) + 1
        message = f"the character {unprintable.group()!r} is not allowed in YAML"
        raise Unreadable(line, message, 'Remove it, or write it as "\\x.." in double quotes.')
    yield from yaml.parse(text, Loader=_LOADER)


def syntax_fault(error: yaml.MarkedYAMLError, text: str) -> TextFault:
    """Return what a YAML library says is wrong with ``text``, with the line where it is mended."""
    problem = error.problem or error.context or "this is no YAML"
    # an unclosed quote is found at the end of the text, and mended where it opened
    unclosed = "end of stream" in problem
    mark = (unclosed and error.context_mark) or error.problem_mark or error.context_mark
    # what is never closed is missed after the last line
    line = min(mark.line if mark else 0, text.rstrip().count("\n"))
    context = f"{error.context}, " if error.context and error.problem else ""
    suggestion = "Correct the syntax; check indentation, colons and quotes."
    if "\t" in "".join(text.splitlines()[line : line + 1]):
        suggestion = "Indent with spaces, not with tabs."
    return parse_fault(line + 1, context + problem, suggestion)


def _too_many() -> FieldError:
    return FieldError(
        f"the file has more than {MAX_DOCUMENTS} documents",
        "Split it into several files.",
        ConfigCode.TOO_MANY_DOCUMENTS,
    )
