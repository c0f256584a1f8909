"""Edits single fields of a YAML text; everything else is kept, comments included."""

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any

import yaml

from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.bundle.yaml import Composer, Node, parse_documents, plain_scalar
from goondan_tasks.contract.wording import FieldPath

_LINE_END = re.compile(r"\r\n|\n|\r|\Z")


class UnchangeableText(Exception):  # noqa: N818 - says what the text is
    """The field at ``path`` cannot be changed without changing more than that."""

    def __init__(self, path: FieldPath) -> None:
        super().__init__(path)
        self.path = path


class YamlText:
    """The text of a file, with its documents."""

    def __init__(self, text: str) -> None:
        """Split the text into documents.

        Raises:
            yaml.MarkedYAMLError: it is not YAML, or only libyaml can read it.
        """
        events: Any = yaml.parse(_without_tabs(text), Loader=yaml.SafeLoader)
        begun: list[Any] = [event for event in events if isinstance(event, yaml.DocumentStartEvent)]
        borders = [0, *(event.start_mark.index for event in begun[1:]), len(text)]
        self._parts = [DocumentText(text[start:end]) for start, end in pairwise(borders)]
        self._documents = [part for part in self._parts if part.data is not None]

    @property
    def text(self) -> str:
        """The whole text in its current state."""
        return "".join(part.text for part in self._parts)

    def document(self, index: int) -> "DocumentText":
        """Return a document by its position among those that are not empty."""
        return self._documents[index]


class DocumentText:
    """The text of a document, with the text before and after it.

    Each change is verified: it is undone unless the new text has the old data with exactly that change. A
    path must lead to a field that is not shared.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def data(self) -> Any:
        """The data of the document, ``None`` if it is empty."""
        documents, _ = parse_documents(self.text, "")
        return documents[0].data if documents else None

    def is_shared(self, path: FieldPath) -> bool:
        """Return whether other places use the text of the field at ``path``.

        Then it is reached through an alias or a merge (``<<``), or there is an anchor on the way to it or in
        it.
        """
        try:
            *way, node = _way(_root(self.text), path)
        except LookupError:
            return True
        return any(owner.event.anchor for owner in way) or _has_anchor(node)

    @contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Undo all changes if one of them cannot be made."""
        before = self.text
        try:
            yield
        except UnchangeableText:
            self.text = before
            raise

    def replace(self, path: FieldPath, value: str) -> None:
        """Write ``value``, such as a name, in place of the scalar at ``path``.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path) as (data, way):
            _value(data, path[:-1])[path[-1]] = value
            self._write(way[-1].event, way[-1].end, value)

    def rename(self, path: FieldPath, name: str) -> None:
        """Change the key of the field at ``path`` to ``name``.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path) as (data, way):
            owner = _value(data, path[:-1])
            owner[name] = owner.pop(path[-1])
            key, _ = way[-2].pairs[_index(way[-2].pairs, path[-1])]
            self._write(key, key.end_mark.index, name)

    def remove(self, path: FieldPath) -> None:
        """Remove the field at ``path``, and each mapping that is a field and becomes empty.

        Raises:
            UnchangeableText: that would change more.
        """
        with self._changing(path) as (data, way):
            while len(way[-2].pairs) == 1 and len(path) > 1 and isinstance(path[-2], str):
                *way, path = *way[:-1], path[:-1]
            owner, index = way[-2], _index(way[-2].pairs, path[-1])
            del _value(data, path[:-1])[path[-1]]
            if len(owner.pairs) == 1:
                self._edit(owner.event.start_mark.index, owner.end, "{}")
            elif owner.event.flow_style:
                self._edit(*_flow_span(owner.pairs, index))
            else:
                self._edit(*_block_span(self.text, owner.pairs, index))

    @contextmanager
    def _changing(self, path: FieldPath) -> Iterator[tuple[Any, list[Node]]]:
        """Yield a copy of the data, which the caller must change like the text, and the nodes on the path."""
        before, expected = self.text, copy.deepcopy(self.data)
        try:
            yield expected, _way(_root(before), path)
            documents, faults = parse_documents(self.text, "")
            if faults or [document.data for document in documents] != [expected]:
                raise LookupError(path)
        except (LookupError, yaml.YAMLError) as error:
            self.text = before
            raise UnchangeableText(path) from error

    def _write(self, scalar: Any, end: int, value: str) -> None:
        style = scalar.style if isinstance(scalar, yaml.ScalarEvent) else None
        quote = style if style in ("'", '"') else "" if _is_text(value) else "'"
        # a block scalar ends with its line
        line_end = "\n" if style in ("|", ">") else ""
        self._edit(scalar.start_mark.index, end, f"{quote}{value}{quote}{line_end}")

    def _edit(self, start: int, end: int, value: str = "") -> None:
        self.text = self.text[:start] + value + self.text[end:]


@lru_cache(maxsize=1)
def _root(text: str) -> Node:
    # not libyaml, which counts positions in other units
    return next(Composer(_without_tabs(text), yaml.SafeLoader).documents())


def _without_tabs(text: str) -> str:
    """Replace each tab by a space: PyYAML refuses a tab after a colon or a dash."""
    return text.replace("\t", " ")


def _is_text(value: str) -> bool:
    """Return whether an unquoted scalar is a string: ``1``, ``null`` and ``1e5`` are not."""
    try:
        return isinstance(plain_scalar(value), str)
    except FieldError:
        return False


def _value(data: Any, path: FieldPath) -> Any:
    return reduce(lambda value, step: value[step], path, data)


def _way(root: Node, path: FieldPath) -> list[Node]:
    """Return the nodes from the root to the one at ``path``.

    Raises:
        LookupError: the field comes from an alias or a merge.
    """
    way = [root]
    for step in path:
        node = way[-1]
        if isinstance(node.event, yaml.AliasEvent):
            raise LookupError(step)
        is_sequence = isinstance(node.event, yaml.SequenceStartEvent)
        way.append(node.parts[step] if is_sequence else node.pairs[_index(node.pairs, step)][1])
    return way


def _index(pairs: Sequence[tuple[Any, Node]], name: str | int) -> int:
    for index, (key, _) in enumerate(pairs):
        if key.value == name:
            return index
    raise LookupError(name)


def _has_anchor(node: Node) -> bool:
    if isinstance(node.event, yaml.AliasEvent):
        return False
    inner = [value for _, value in node.pairs] or list(node.parts.values())
    return bool(node.event.anchor) or any(key.anchor for key, _ in node.pairs) or any(map(_has_anchor, inner))


def _flow_span(pairs: Sequence[tuple[Any, Node]], index: int) -> tuple[int, int]:
    """Return where a field of ``{…}`` begins and ends, with the comma that goes with it."""
    if index + 1 < len(pairs):
        return pairs[index][0].start_mark.index, pairs[index + 1][0].start_mark.index
    return pairs[index - 1][1].end, pairs[index][1].end


def _block_span(text: str, pairs: Sequence[tuple[Any, Node]], index: int) -> tuple[int, int]:
    """Return where a field with lines of its own begins and ends."""
    key, value = pairs[index]
    start = key.start_mark.index
    line = start - key.start_mark.column
    # after the dash of a list item, the next field moves here; a question mark belongs to the field
    if text[line:start].strip() not in ("", "?"):
        return start, pairs[index + 1][0].start_mark.index
    end = value.end
    found = _LINE_END.search(text, end)
    return line, end if text[end - 1] in "\r\n" or found is None else found.end()
