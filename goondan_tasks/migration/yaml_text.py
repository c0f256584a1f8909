"""A YAML text that is changed place by place: what is not changed stays as it was, comments included."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import yaml

from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.yaml import parse_documents, plain_scalar
from goondan_tasks.json_values import FieldPath


def replaced(data: Any, path: FieldPath, value: Any) -> Any:
    """Return ``data`` with ``value`` at ``path``."""
    if not path:
        return value
    step, *rest = path
    inner = replaced(data[step], tuple(rest), value)
    if isinstance(data, list):
        return [inner if index == step else item for index, item in enumerate(data)]
    return {**data, step: inner}


def renamed(data: Any, path: FieldPath, key: str) -> Any:
    """Return ``data`` with another key for the field at ``path``."""
    fields = {key if name == path[-1] else name: item for name, item in _at(data, path[:-1]).items()}
    return replaced(data, path[:-1], fields)


def removed(data: Any, path: FieldPath) -> Any:
    """Return ``data`` without the field at ``path``, and without a mapping that is empty then."""
    owner = path[:-1]
    fields = {name: item for name, item in _at(data, owner).items() if name != path[-1]}
    if not fields and owner and isinstance(owner[-1], str):
        return removed(data, owner)
    return replaced(data, owner, fields)


def _at(data: Any, path: FieldPath) -> Any:
    for step in path:
        data = data[step]
    return data


_NULL = {"", "~", "null", "Null", "NULL"}
_LINE_END = re.compile(r"\r\n|\n|\r|\Z")


class UnchangeableText(Exception):  # noqa: N818 - says what the text is
    """The field at ``path`` cannot be changed without changing more than that."""

    def __init__(self, path: FieldPath) -> None:
        super().__init__(path)
        self.path = path


class _Pair(NamedTuple):
    key: yaml.Node
    value: yaml.Node


class _Loader(yaml.SafeLoader):
    """Composes nodes in which an alias is a place of its own; libyaml counts places in other units."""

    def __init__(self, text: str) -> None:
        super().__init__(_without_tabs(text))
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
        """Take the text apart.

        Raises:
            yaml.MarkedYAMLError: it is no YAML, or of a form that only libyaml understands.
        """
        events: Any = yaml.parse(_without_tabs(text), Loader=yaml.SafeLoader)
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

    Every change composes the text anew, so places may be changed in any order, and reads what has come of it:
    it is made only if it changes nothing else. Each path must lead to a field that is not shared.
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

    def is_shared(self, path: FieldPath) -> bool:
        """Whether the field at ``path`` cannot be changed by itself: other places mean the same text.

        It stands behind an alias or a merge (``<<``), or an anchor stands on the way to it, or in it.
        """
        try:
            way = self._way(path)
        except LookupError:
            return True
        field = range(way[-1].start_mark.index, _end(way[-1]) + 1)
        return any(node in way or node.start_mark.index in field for node in self._loader().anchored)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Take all changes back if one of them cannot be made."""
        before = self.text
        try:
            yield
        except UnchangeableText:
            self._take(before)
            raise

    def replace(self, path: FieldPath, value: str) -> None:
        """Write ``value``, a name or the like, in place of the scalar at ``path``.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path, replaced(self._data(), path, value)):
            self._write(self._node(path), value)

    def rename(self, path: FieldPath, key: str) -> None:
        """Call the field at ``path`` ``key``.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path, renamed(self._data(), path, key)):
            pairs = self._pairs(path[:-1])
            self._write(pairs[_index(pairs, path[-1])].key, key)

    def remove(self, path: FieldPath) -> None:
        """Take the field at ``path`` away, and a mapping that is empty without it.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path, removed(self._data(), path)):
            self._remove(path)

    @contextmanager
    def _changing(self, path: FieldPath, expected: Any) -> Iterator[None]:
        before = self.text
        try:
            yield
        except (LookupError, yaml.YAMLError) as error:
            self._take(before)
            raise UnchangeableText(path) from error
        documents, faults = parse_documents(self.text, "")
        if faults or [document.data for document in documents] != [expected]:
            self._take(before)
            raise UnchangeableText(path)

    def _data(self) -> Any:
        return parse_documents(self.text, "")[0][0].data

    def _remove(self, path: FieldPath) -> None:
        pairs = self._pairs(path[:-1])
        if len(pairs) == 1 and isinstance(path[-2], str):
            self._remove(path[:-1])
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
        quote = style if style in ("'", '"') else "" if _is_text(value) else "'"
        # a block scalar ends with its line
        line_end = "\n" if style in ("|", ">") else ""
        self._change(scalar.start_mark.index, scalar.end_mark.index, f"{quote}{value}{quote}{line_end}")

    def _change(self, start: int, end: int, value: str) -> None:
        self._take(self.text[:start] + value + self.text[end:])

    def _take(self, text: str) -> None:
        self.text = text
        self._composed = None

    def _node(self, path: FieldPath) -> yaml.Node:
        return self._way(path)[-1]

    def _way(self, path: FieldPath) -> list[yaml.Node]:
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

    def _pairs(self, path: FieldPath) -> Sequence[_Pair]:
        return _pairs_of(self._node(path))


def _without_tabs(text: str) -> str:
    """Return ``text`` with all places where they are; PyYAML knows no tab behind a colon or a dash."""
    return text.replace("\t", " ")


def _is_text(value: str) -> bool:
    """Say whether a scalar without quotes is text: ``1``, ``null`` and ``1e5`` are not."""
    try:
        return isinstance(plain_scalar(value), str)
    except FieldError:
        return False


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
    # behind the dash of a list the next field takes its place; a question mark is the field's own
    if text[line:start].strip() not in ("", "?"):
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
