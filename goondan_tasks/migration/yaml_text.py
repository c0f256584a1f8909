"""A YAML text that is changed place by place: what is not changed stays as it was, comments included."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from goondan_tasks.json_values import Path

_NULL = {"", "~", "null", "Null", "NULL"}
_LINE_END = re.compile(r"\r\n|\n|\r|\Z")


class _Pair(NamedTuple):
    key: yaml.Node
    value: yaml.Node


class _Loader(yaml.SafeLoader):
    """Composes nodes in which an alias is a place of its own; libyaml counts places in other units."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.anchored: list[yaml.Node] = []
        self.root: yaml.Node | None = self.get_single_node()

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Compose the next node."""
        parser: Any = self
        event = parser.peek_event()
        if isinstance(event, yaml.AliasEvent):
            alias = parser.get_event()
            return yaml.ScalarNode("alias", f"*{alias.anchor}", alias.start_mark, alias.end_mark)
        # one name may be defined twice; nothing is looked up in this table
        self.anchors = {}
        node = super().compose_node(parent, index)
        if event.anchor is not None and node is not None:
            self.anchored.append(node)
        return node


class YamlText:
    """The text of a file, and its documents that are not empty."""

    def __init__(self, text: str) -> None:
        """Take the text apart; it must be YAML."""
        events: Any = yaml.parse(text, Loader=yaml.SafeLoader)
        begun = [event for event in events if isinstance(event, yaml.DocumentStartEvent)]
        starts: list[Any] = [event.start_mark for event in begun]
        borders = [0, *(start.index for start in starts[1:]), len(text)]
        self._parts = [DocumentText(text[start:end]) for start, end in pairwise(borders)]
        self._documents = [part for part in self._parts if not part.is_empty]

    @property
    def text(self) -> str:
        """The whole text, as it is now."""
        return "".join(part.text for part in self._parts)

    def document(self, index: int) -> "DocumentText":
        """Return a document by its place among those that are not empty."""
        return self._documents[index]


class DocumentText:
    """The text of a document, with what stands before and after it.

    Every change composes the text anew, so places may be changed in any order. Each path must lead to a field
    that is not shared.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._composed: _Loader | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no value."""
        root = self._loader().root
        is_scalar = isinstance(root, yaml.ScalarNode) and not root.style
        return root is None or (is_scalar and root.value in _NULL)

    def is_shared(self, path: Path) -> bool:
        """Whether the field at ``path`` cannot be changed by itself: other places mean the same text.

        It stands behind an alias or a merge (``<<``), or an anchor stands on the way to it, or in it.
        """
        try:
            way = self._way(path)
        except LookupError:
            return True
        field = range(way[-1].start_mark.index, _end(way[-1]) + 1)
        return any(node in way or node.start_mark.index in field for node in self._loader().anchored)

    def replace(self, path: Path, value: str) -> None:
        """Write ``value``, which must be plain text, in place of the scalar at ``path``."""
        self._write(self._node(path), value)

    def rename(self, path: Path, key: str) -> None:
        """Call the field at ``path`` ``key``."""
        pairs = self._pairs(path[:-1])
        self._write(pairs[_index(pairs, path[-1])].key, key)

    def remove(self, path: Path) -> None:
        """Take the field at ``path`` away, and a mapping that is empty without it."""
        pairs = self._pairs(path[:-1])
        if len(pairs) == 1 and isinstance(path[-2], str):
            self.remove(path[:-1])
            return
        owner = self._node(path[:-1])
        if len(pairs) == 1:
            start, end, rest = owner.start_mark.index, _end(owner), "{}"
        elif isinstance(owner, yaml.CollectionNode) and owner.flow_style:
            start, end, rest = *_flow_span(pairs, _index(pairs, path[-1])), ""
        else:
            start, end, rest = *_block_span(self.text, pairs, _index(pairs, path[-1])), ""
        self._change(start, end, rest)

    def _write(self, scalar: yaml.Node, value: str) -> None:
        style = str(scalar.style or "") if isinstance(scalar, yaml.ScalarNode) else ""
        written = f"{style}{value}{style}" if style in ("'", '"') else value
        # a block scalar ends with its line
        line_end = "\n" if style in ("|", ">") else ""
        self._change(scalar.start_mark.index, scalar.end_mark.index, written + line_end)

    def _change(self, start: int, end: int, value: str) -> None:
        self.text = self.text[:start] + value + self.text[end:]
        self._composed = None

    def _node(self, path: Path) -> yaml.Node:
        return self._way(path)[-1]

    def _way(self, path: Path) -> list[yaml.Node]:
        """Return the nodes from the root to the one at ``path``."""
        root = self._loader().root
        way = [] if root is None else [root]
        for step in path:
            if isinstance(step, int):
                items = way[-1].value if isinstance(way[-1], yaml.SequenceNode) else []
                way.append(items[step])
            else:
                pairs = _pairs_of(way[-1])
                way.append(pairs[_index(pairs, step)].value)
        return way

    def _loader(self) -> "_Loader":
        if self._composed is None:
            self._composed = _Loader(self.text)
        return self._composed

    def _pairs(self, path: Path) -> Sequence[_Pair]:
        return _pairs_of(self._node(path))


def _pairs_of(node: yaml.Node) -> Sequence[_Pair]:
    return [_Pair(*pair) for pair in node.value] if isinstance(node, yaml.MappingNode) else []


def _index(pairs: Sequence[_Pair], key: str | int) -> int:
    found = (index for index, pair in enumerate(pairs) if pair.key.value == key)
    index = next(found, None)
    if index is None:
        raise LookupError(key)
    return index


def _flow_span(pairs: Sequence[_Pair], index: int) -> tuple[int, int]:
    """Return where a field of ``{…}`` begins and ends, with the comma that goes with it."""
    key, value = pairs[index]
    if index + 1 < len(pairs):
        return key.start_mark.index, pairs[index + 1].key.start_mark.index
    return _end(pairs[index - 1].value), _end(value)


def _block_span(text: str, pairs: Sequence[_Pair], index: int) -> tuple[int, int]:
    """Return where a field with lines of its own begins and ends."""
    start = pairs[index].key.start_mark.index
    line = start - pairs[index].key.start_mark.column
    if text[line:start].strip():  # it stands behind the dash of a list: the next field takes its place
        return start, pairs[index + 1].key.start_mark.index
    end = _end(pairs[index].value)
    is_line_start = text[end - 1] in "\r\n"
    found = _LINE_END.search(text, end)
    return line, end if is_line_start or found is None else found.end()


def _end(node: yaml.Node) -> int:
    """Return where a value ends; the marks of block collections lie behind the comments after them."""
    if not isinstance(node, yaml.CollectionNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
