"""YAML events as a tree of plain data in which every value knows its line."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from yaml import events

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.scalars import Scalar, plain_scalar

MAX_DEPTH = 64
#: values that the aliases of one file may stand for, all together
MAX_ALIASED = 10_000

_TAG_PREFIX = "tag:yaml.org,2002:"
_CORE_TAGS = {f"{_TAG_PREFIX}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")}
_TEXT_TAGS = {"!", f"{_TAG_PREFIX}str"}
_MERGE = "<<"


@dataclass(frozen=True, slots=True)
class TextFault:
    """What is wrong with a text, and in which line."""

    line: int
    error: FieldError


class Unreadable(Exception):  # noqa: N818 - says what the rest of the text is
    """The rest of the text cannot be read."""

    def __init__(self, line: int, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.text_fault = parse_fault(line, message, suggestion)


def parse_fault(line: int, message: str, suggestion: str) -> TextFault:
    """Return a fault of the text itself."""
    return TextFault(line, FieldError(message, suggestion, ConfigCode.PARSE_ERROR))


@dataclass(frozen=True, slots=True)
class Node:
    """A value: its data, its line, and the nodes of its fields or items.

    ``parts`` of a field say the line of its key.
    """

    data: Any
    line: int
    parts: Mapping[str | int, "Node"] = field(default_factory=dict)
    #: values it is made of, aliases written out
    size: int = 1
    #: levels below it
    height: int = 0


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not been read yet."""

    line: int
    anchor: str | None
    is_mapping: bool
    parts: dict[str | int, Node] = field(default_factory=dict)
    #: the key that waits for its value: text, line, whether it merges
    key: tuple[str, int, bool] | None = None
    merged: list[Node] = field(default_factory=list)

    @property
    def wants_key(self) -> bool:
        return self.is_mapping and self.key is None

    def closed(self) -> Node:
        children = [*self.parts.values(), *self.merged]
        data: Any = [node.data for node in self.parts.values()]
        if self.is_mapping:
            data = {key: node.data for key, node in self.parts.items()}
        size = 1 + sum(child.size for child in children)
        height = 1 + max((child.height for child in children), default=0)
        return Node(data, self.line, self.parts, size, height)


class Composer:
    """Builds one node per document; :attr:`faults` holds what is wrong but leaves the rest readable."""

    def __init__(self) -> None:
        self.faults: list[TextFault] = []
        self._anchors: dict[str, Node] = {}
        self._open: list[_Open] = []
        self._root: Node | None = None
        self._aliased = 0

    def documents(self, stream: Iterable[events.Event]) -> Iterator[Node]:
        """Yield the root of each document.

        Raises:
            Unreadable: the text nests or repeats itself too much, or uses a feature that JSON lacks.
            yaml.YAMLError: the text is no YAML.
        """
        for event in stream:
            line = event.start_mark.line + 1 if event.start_mark else 1
            match event:
                case events.DocumentStartEvent():
                    self._anchors, self._root = {}, None
                case events.DocumentEndEvent():
                    yield self._root or Node(None, line)
                case events.ScalarEvent():
                    self._scalar(event, line)
                case events.AliasEvent():
                    self._add(self._alias(str(event.anchor), line), line)
                case events.CollectionStartEvent():
                    self._begin(event, line)
                case events.CollectionEndEvent():
                    self._end()

    def _scalar(self, event: events.ScalarEvent, line: int) -> None:
        if self._open and self._open[-1].wants_key:
            self._remember(event.anchor, Node(event.value, line))
            self._open[-1].key = (event.value, line, event.value == _MERGE and event.implicit[0])
            return
        node = Node(self._scalar_value(event, line), line)
        self._remember(event.anchor, node)
        self._add(node, line)

    def _scalar_value(self, event: events.ScalarEvent, line: int) -> Scalar:
        if not self._is_core(event.tag, line):
            return None
        if event.tag in _TEXT_TAGS or (event.tag is None and not event.implicit[0]):
            return str(event.value)
        try:
            return plain_scalar(event.value)
        except FieldError as fault:
            self.faults.append(TextFault(line, fault))
            return None

    def _begin(self, event: events.CollectionStartEvent, line: int) -> None:
        if self._open and self._open[-1].wants_key:
            raise Unreadable(line, "a key must be text", "Write the key as plain text.")
        if len(self._open) >= MAX_DEPTH:
            raise Unreadable(line, f"nested deeper than {MAX_DEPTH} levels", "Flatten the document.")
        self._is_core(event.tag, line)
        self._open.append(_Open(line, event.anchor, isinstance(event, events.MappingStartEvent)))

    def _end(self) -> None:
        container = self._open.pop()
        for node in container.merged:
            self._merge(container, node)
        node = container.closed()
        self._remember(container.anchor, node)
        self._add(node, container.line)

    def _merge(self, container: _Open, node: Node) -> None:
        sources = list(node.parts.values()) if isinstance(node.data, list) else [node]
        for source in sources:
            if not isinstance(source.data, dict):
                self.faults.append(
                    parse_fault(node.line, "'<<' merges mappings only", "Point it at an anchored mapping.")
                )
                continue
            for key, part in source.parts.items():
                container.parts.setdefault(key, part)

    def _alias(self, anchor: str, line: int) -> Node:
        node = self._anchors.get(anchor)
        if node is None:
            raise Unreadable(
                line, f"the alias *{anchor} refers to no anchor before it", f"Define &{anchor} first."
            )
        self._aliased += node.size
        if self._aliased > MAX_ALIASED or len(self._open) + node.height > MAX_DEPTH:
            raise Unreadable(line, "the aliases repeat too much", "Write the values out.")
        return node

    def _remember(self, anchor: str | None, node: Node) -> None:
        if anchor is not None:
            self._anchors[anchor] = node

    def _add(self, node: Node, line: int) -> None:
        if not self._open:
            self._root = node
            return
        container = self._open[-1]
        if container.wants_key:
            raise Unreadable(line, "a key must be text", "Write the key as plain text.")
        if container.key is None:
            container.parts[len(container.parts)] = node
            return
        key, key_line, merges = container.key
        container.key = None
        if merges:
            container.merged.append(node)
        elif key in container.parts:
            message = f"the key '{key[:80]}' is there twice (first in line {container.parts[key].line})"
            self.faults.append(parse_fault(key_line, message, "Remove one of the two."))
        else:
            container.parts[key] = replace(node, line=key_line)

    def _is_core(self, tag: str | None, line: int) -> bool:
        if tag is None or tag == "!" or tag in _CORE_TAGS:
            return True
        self.faults.append(parse_fault(line, f"the tag '{tag[:80]}' is not supported", "Remove the tag."))
        return False
