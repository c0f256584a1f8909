"""A YAML text that is changed place by place: what is not changed stays as it was, comments included."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import yaml

from goondan_tasks.json_values import Path

# not libyaml's, which counts places in other units
_Loader = yaml.SafeLoader

_NULL = {"", "~", "null", "Null", "NULL"}
_LINE_END = re.compile(r"\r\n|\n|\r|\Z")


class _Pair(NamedTuple):
    key: yaml.Node
    value: yaml.Node


class YamlText:
    """The text of a file, and its documents that are not empty, by their place among those.

    Every change composes the text anew, so places may be changed in any order. The text must be YAML, and
    each path must lead to a field; where an alias stands, no field can be changed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._roots: list[yaml.Node] | None = None

    @property
    def has_aliases(self) -> bool:
        """Whether a part of it stands for another part, or is merged into one (``<<``)."""
        return any(
            isinstance(event, yaml.AliasEvent)
            or (isinstance(event, yaml.ScalarEvent) and event.value == "<<")
            for event in yaml.parse(self.text, Loader=_Loader)
        )

    def replace(self, document: int, path: Path, value: str) -> None:
        """Write ``value``, which must be plain text, in place of the scalar at ``path``."""
        self._write(self._node(document, path), value)

    def rename(self, document: int, path: Path, key: str) -> None:
        """Call the field at ``path`` ``key``."""
        pairs = self._pairs(document, path[:-1])
        self._write(pairs[_index(pairs, path[-1])].key, key)

    def remove(self, document: int, path: Path) -> None:
        """Take the field at ``path`` away, and a mapping that is empty without it."""
        pairs = self._pairs(document, path[:-1])
        if len(pairs) == 1 and isinstance(path[-2], str):
            self.remove(document, path[:-1])
            return
        owner = self._node(document, path[:-1])
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
        self._roots = None

    def _node(self, document: int, path: Path) -> yaml.Node:
        if self._roots is None:
            nodes = yaml.compose_all(self.text, Loader=_Loader)
            self._roots = [node for node in nodes if not _is_empty(node)]
        node = self._roots[document]
        for step in path:
            if isinstance(step, int):
                node = node.value[step]
            else:
                pairs = _pairs_of(node)
                node = pairs[_index(pairs, step)].value
        return node

    def _pairs(self, document: int, path: Path) -> Sequence[_Pair]:
        return _pairs_of(self._node(document, path))


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<"


def _pairs_of(mapping: yaml.Node) -> Sequence[_Pair]:
    return [_Pair(*pair) for pair in mapping.value]


def _index(pairs: Sequence[_Pair], key: str | int) -> int:
    return next(index for index, pair in enumerate(pairs) if pair.key.value == key)


def _is_empty(root: yaml.Node) -> bool:
    return isinstance(root, yaml.ScalarNode) and not root.style and root.value in _NULL


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
