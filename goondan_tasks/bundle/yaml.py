"""Parses YAML into documents whose values have line numbers.

The text is read event by event, so hostile input (deep nesting, aliases that multiply) is refused at little
cost. Scalars follow the core schema of YAML 1.2 (§10.3.2): ``no``, ``22:22``, ``1_000`` and dates are
strings. Tags of programming languages are refused.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml
from yaml.reader import Reader

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.contract.wording import FieldPath

MAX_DOCUMENTS = 100
MAX_DEPTH = 64
_TOO_DEEP = (f"nested deeper than {MAX_DEPTH} levels", "Flatten the document.")
#: the most values that all aliases of a file may expand to
MAX_ALIASED = 10_000

# libyaml, where PyYAML was built with it, is ten times faster and yields the same events
_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

Scalar = str | int | float | bool | None
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}
_TAG_PREFIX = "tag:yaml.org,2002:"
_CORE_TAGS = {
    None,
    "!",
    *(_TAG_PREFIX + name for name in ("str", "int", "float", "bool", "null", "map", "seq")),
}
_TEXT_TAGS = {"!", f"{_TAG_PREFIX}str"}


class TextFault(NamedTuple):
    line: int
    error: FieldError


class Unreadable(Exception):  # noqa: N818 - says what the rest of the text is
    """The rest of the text cannot be read."""

    def __init__(self, line: int, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.text_fault = parse_fault(line, message, suggestion)


def parse_fault(line: int, message: str, suggestion: str) -> TextFault:
    return TextFault(line, FieldError(message, suggestion, ConfigCode.PARSE_ERROR))


@dataclass(slots=True)
class Node:
    """A value with its line and the extent of its text; a field has the line of its key."""

    data: Any
    line: int
    #: the parser's event that begins it; for an alias, ``data`` is that of its anchor
    event: Any
    #: where its text ends, as an index in the parser's units
    end: int
    #: its fields or items, with those of aliases and merges
    parts: Mapping[str | int, "Node"] = field(default_factory=dict)
    #: the fields of a mapping as written: the event of each key, and its value
    pairs: Sequence[tuple[Any, "Node"]] = ()
    #: the number of its values, aliases expanded
    size: int = 1
    #: the levels below it
    height: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    file: str
    #: its position among the documents of the file that are not empty, from 0
    index: int
    node: Node

    @property
    def data(self) -> Any:
        """The document as dicts, lists and scalars."""
        return self.node.data

    def line_of(self, path: FieldPath) -> int:
        """Return the line of the value at ``path``, or of the last part of the path that exists."""
        node = self.node
        for step in path:
            if step not in node.parts:
                break
            node = node.parts[step]
        return node.line


def parse_documents(text: str, file: str) -> tuple[list[Document], list[TextFault]]:
    """Parse the documents of ``text`` up to the first syntax error, without empty ones."""
    composer = Composer(text)
    documents: list[Document] = []
    fatal: list[TextFault] = []
    try:
        for count, node in enumerate(composer.documents()):
            if count == MAX_DOCUMENTS:
                message = f"the file has more than {MAX_DOCUMENTS} documents"
                error = FieldError(message, "Split it into several files.", ConfigCode.TOO_MANY_DOCUMENTS)
                fatal.append(TextFault(node.line, error))
                break
            if node.data is not None:
                documents.append(Document(file, len(documents), node))
    except Unreadable as error:
        fatal.append(error.text_fault)
    except yaml.MarkedYAMLError as error:
        fatal.append(syntax_fault(error, text))
    return documents, [*composer.faults, *fatal]


def syntax_fault(error: yaml.MarkedYAMLError, text: str) -> TextFault:
    """Return the syntax error that a YAML library reports in ``text``, with the line to correct."""
    problem = error.problem or error.context or "this is not YAML"
    # an unclosed quote is reported at the end of the text, but is to be corrected where it opens
    unclosed = "end of stream" in problem
    mark = (unclosed and error.context_mark) or error.problem_mark or error.context_mark
    # a missing end is reported after the last line
    line = min(mark.line if mark else 0, text.rstrip().count("\n"))
    if "maximum nesting depth" in problem:  # libyaml 0.2.6 has a limit too, and reads ahead of the events
        return parse_fault(line + 1, *_TOO_DEEP)
    context = f"{error.context}, " if error.context and error.problem else ""
    suggestion = "Correct the syntax; check indentation, colons and quotes."
    if "\t" in "".join(text.splitlines()[line : line + 1]):
        suggestion = "Indent with spaces, not with tabs."
    return parse_fault(line + 1, context + problem, suggestion)


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises:
        FieldError: it is a number that JSON cannot represent.
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.fullmatch(text):
            return int(text, _BASES.get(text[:2], 10))
        number = float(text) if _FLOAT.fullmatch(text) else None
    except ValueError:
        number = math.inf
    if _NOT_FINITE.fullmatch(text) or (number is not None and not math.isfinite(number)):
        message = f"{text[:40]} is not a number that JSON can represent"
        suggestion = "Write a finite number, or quote it if it is text."
        raise FieldError(message, suggestion, ConfigCode.PARSE_ERROR)
    return text if number is None else number


class Composer:
    """Builds the nodes of a text; :attr:`faults` has the errors after which the rest can be read."""

    def __init__(self, text: str, loader: Any = _LOADER) -> None:
        self.faults: list[TextFault] = []
        self._events = _events(text, loader)
        self._anchors: dict[str | None, Node] = {}
        self._aliased = 0

    def documents(self) -> Iterator[Node]:
        """Yield the root of each document.

        Raises:
            Unreadable: the text nests or repeats too much, or uses a feature that JSON lacks.
            yaml.MarkedYAMLError: the text is not YAML.
        """
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 0)

    def _node(self, event: Any, depth: int, key_line: int | None = None) -> Node:
        line, end = _line(event), event.end_mark.index
        if isinstance(event, yaml.AliasEvent):
            node = self._anchored(event.anchor, line, depth)
            return replace(node, event=event, end=end, line=key_line or node.line)
        if event.tag not in _CORE_TAGS:
            message = f"the tag '{event.tag[:80]}' is not supported"
            self.faults.append(parse_fault(line, message, "Remove the tag."))
        if isinstance(event, yaml.ScalarEvent):
            node = Node(self._scalar(event, line), line, event, end)
        elif depth == MAX_DEPTH:
            raise Unreadable(line, *_TOO_DEEP)
        elif isinstance(event, yaml.MappingStartEvent):
            node = self._mapping(event, line, depth + 1)
        else:
            node = self._sequence(event, line, depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = replace(node)
        if key_line is not None:
            node.line = key_line
        return node

    def _scalar(self, event: Any, line: int) -> Scalar:
        if event.tag not in _CORE_TAGS:
            return None
        if event.tag in _TEXT_TAGS or (event.tag is None and not event.implicit[0]):
            return str(event.value)
        try:
            return plain_scalar(event.value)
        except FieldError as error:
            self.faults.append(TextFault(line, error))
            return None

    def _sequence(self, event: Any, line: int, depth: int) -> Node:
        parts: dict[str | int, Node] = {}
        while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
            parts[len(parts)] = self._node(item, depth)
        nodes = list(parts.values())
        data = [node.data for node in nodes]
        return Node(data, line, event, _end(event, item, nodes), parts, (), *_measure(nodes))

    def _mapping(self, event: Any, line: int, depth: int) -> Node:
        parts: dict[str | int, Node] = {}
        pairs: list[tuple[Any, Node]] = []
        merged: list[Node] = []
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            if not isinstance(key, yaml.ScalarEvent):
                raise Unreadable(_line(key), "a key must be text", "Write the key as plain text.")
            if key.anchor is not None:
                self._anchors[key.anchor] = Node(key.value, _line(key), key, _end(key, key, ()))
            node = self._node(next(self._events), depth, _line(key))
            pairs.append((key, node))
            if key.value == "<<" and key.implicit[0]:
                merged.append(node)
            elif key.value in parts:
                message = f"duplicate key '{key.value[:80]}' (first in line {parts[key.value].line})"
                self.faults.append(parse_fault(_line(key), message, "Remove one of the two."))
            else:
                parts[key.value] = node
        nodes = [*parts.values(), *merged]
        end = _end(event, key, [value for _, value in pairs])
        for node in merged:
            self._merge(parts, node)
        data = {name: node.data for name, node in parts.items()}
        return Node(data, line, event, end, parts, pairs, *_measure(nodes))

    def _merge(self, parts: dict[str | int, Node], node: Node) -> None:
        for source in node.parts.values() if isinstance(node.data, list) else [node]:
            if not isinstance(source.data, dict):
                message = "'<<' merges mappings only"
                self.faults.append(parse_fault(node.line, message, "Point it at an anchored mapping."))
                continue
            for name, part in source.parts.items():
                parts.setdefault(name, part)

    def _anchored(self, anchor: str | None, line: int, depth: int) -> Node:
        node = self._anchors.get(anchor)
        if node is None:
            raise Unreadable(line, f"the alias *{anchor} has no anchor before it", f"Define &{anchor} first.")
        self._aliased += node.size
        if self._aliased > MAX_ALIASED or depth + node.height > MAX_DEPTH:
            raise Unreadable(line, "the aliases repeat too much", "Write the values out.")
        return node


def _events(text: str, loader: Any) -> Iterator[Any]:
    unprintable = Reader.NON_PRINTABLE.search(text)
    if unprintable:
        message = f"the character {unprintable.group()!r} is not allowed in YAML"
        suggestion = 'Remove it, or write it as "\\x.." in double quotes.'
        raise Unreadable(text.count("\n", 0, unprintable.start()) + 1, message, suggestion)
    yield from yaml.parse(text, Loader=loader)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _end(start: Any, end: Any, values: Sequence[Node]) -> int:
    """Return where a collection ends; the parser puts the end of block style after later comments."""
    return values[-1].end if values and not start.flow_style else int(end.end_mark.index)


def _measure(nodes: Sequence[Node]) -> tuple[int, int]:
    return 1 + sum(node.size for node in nodes), 1 + max((node.height for node in nodes), default=0)
