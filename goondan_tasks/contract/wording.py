"""Wording of messages to people and models: values, paths, and "did you mean" for misspelt words."""

import difflib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

FieldPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MOST_NAMED = 12
#: a text that needs no quotes
_is_word = re.compile(r"[^\s=\"']+").fullmatch
#: the types of values that no code of theirs shows
_PLAIN = frozenset({str, int, float, bool, type(None)})
#: whether texts that are joined need none, and are printable; those that are not ASCII are not looked at
are_words = re.compile(r"[!#-&(-<>-~]+").fullmatch
# bounds the time that thousands of misspelt words take
_MOST_COMPARED = 500
#: the shortest prefix that matches a word: "desc" for "description"
_SHORTEST_PREFIX = 3


def written(path: FieldPath, root: str = "args") -> str:
    """Write a path as in code: ``args.items[2].count``."""
    return (root + "".join(_step(part) for part in path)).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
        return f".{part}"
    return f"[{json.dumps(part)}]"


def shown(value: Any) -> str:
    """Show a value in a message: a scalar as shortened JSON, an array or object as its size."""
    if isinstance(value, dict):
        return f"an object of {counted(len(value), 'field')}"
    if isinstance(value, list | tuple):
        return f"an array of {counted(len(value), 'item')}"
    if isinstance(value, str | int | float | None):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 80 else text[:79] + "…"
    return f"a value of type {type(value).__name__}"


def counted(count: int, word: str) -> str:
    """Write a number with its noun: ``1 call``, ``2 calls``."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Write a duration in a fitting unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1000:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 60_000 else f"{seconds / 3600:.1f} h"


def tokens_text(usage: Mapping[str, int]) -> str:
    """Write the tokens that a model read and wrote: ``1.2k→85``."""
    return "→".join(_short(usage.get(kind, 0)) for kind in ("input", "output"))


def _short(count: int) -> str:
    if count >= 999_950:
        return f"{count / 1_000_000:.1f}M"
    return f"{count / 1000:.1f}k" if count >= 1000 else str(count)


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` most likely means, or ``None`` if none is similar."""
    folded = {candidate.casefold(): candidate for candidate in itertools.islice(known, _MOST_COMPARED)}
    # difflib takes quadratic time in the length
    asked = word[:100].casefold()
    matches = difflib.get_close_matches(asked, folded, n=1, cutoff=0.6) or _with_prefix(asked, folded)
    return folded[matches[0]] if matches else None


def _with_prefix(prefix: str, words: Iterable[str]) -> list[str]:
    """Return the word that begins with ``prefix``, if it is the only one."""
    found = [word for word in words if word.startswith(prefix)] if len(prefix) >= _SHORTEST_PREFIX else []
    return found if len(found) == 1 else []


def hint(word: str, known: Collection[str], otherwise: str = "Remove it.") -> str:
    """Return a suggestion: the similar word, else the known words, else ``otherwise``."""
    meant = closest(word, known)
    if meant is not None:
        return f"Did you mean '{meant}'?"
    if not known:
        return otherwise
    more = ", …" if len(known) > _MOST_NAMED else ""
    return f"Known are: {', '.join(itertools.islice(known, _MOST_NAMED))}{more}."


def require_fields(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    """Raise a ValueError for an unknown field."""
    for name in given:
        if name not in known:
            raise ValueError(f"{what} has no field {name!r}. {hint(str(name), list(known))}".strip())


def require_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse unknown keywords as Python refuses an unknown argument.

    Raises:
        TypeError: a keyword is unknown.
    """
    for name in given:
        if name not in known:
            meant = closest(name, known)
            suggestion = f"; did you mean {meant!r}?" if meant else ""
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}{suggestion}")


def printable(text: str) -> str:
    """Escape control characters, bidi overrides and lone surrogates, but not line breaks and tabs.

    The output of a tool or of another program must not control the reader's terminal.
    """
    if text.replace("\t", "").replace("\n", "").isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def on_one_line(text: str) -> str:
    """Escape like :func:`printable`, line breaks too: a name must not forge another row."""
    return printable(text.replace("\n", "\\n"))


def shown_field(value: Any) -> str:
    """Return a field's value as lines for people show it."""
    if type(value) is str and _is_word(value):
        return value
    return repr(value)


def are_plain(values: Iterable[Any]) -> bool:
    """Return whether values are texts, numbers, booleans or ``None``, which show themselves."""
    return _PLAIN.issuperset(map(type, values))


def member(node: Any, step: str) -> Any:
    """Return the value of a key or an index in ``node``, or ``None``."""
    if isinstance(node, dict):
        return node.get(step)
    if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
        return node[int(step)]
    return None
