"""Wording of messages to people and models: values, places, and "did you mean" for misspelt words."""

import difflib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

FieldPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MOST_NAMED = 12
# thousands of misspelt words beside thousands of known ones must not take minutes
_MOST_COMPARED = 500
#: a prefix of at least so many letters matches a word: "desc" for "description"
_SHORTEST_BEGINNING = 3


def written(path: FieldPath, root: str = "args") -> str:
    """Write a path as a programmer would: ``args.items[2].count``."""
    return (root + "".join(_step(part) for part in path)).removeprefix(".")


def _step(part: str | int) -> str:
    if isinstance(part, str) and _PLAIN_KEY.fullmatch(part):
        return f".{part}"
    return f"[{json.dumps(part)}]"


def shown(value: Any) -> str:
    """Show a value in a message: scalars as JSON, shortened; of arrays and objects the size alone."""
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
    """Write a duration in the unit that fits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1000:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 60_000 else f"{seconds / 3600:.1f} h"


def tokens_text(usage: Mapping[str, int]) -> str:
    """Write the tokens that a model has read and written: ``1.2k→85``."""
    return "→".join(_short(usage.get(kind, 0)) for kind in ("input", "output"))


def _short(count: int) -> str:
    for size, unit in ((999_950, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / (1_000_000 if unit == 'M' else 1_000):.1f}{unit}"
    return str(count)


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` most likely stands for, or ``None`` if none is near."""
    folded = {candidate.casefold(): candidate for candidate in itertools.islice(known, _MOST_COMPARED)}
    # difflib is quadratic in the length, and no misspelt name has that many characters
    asked = word[:100].casefold()
    matches = difflib.get_close_matches(asked, folded, n=1, cutoff=0.6) or _begun_with(asked, folded)
    return folded[matches[0]] if matches else None


def _begun_with(asked: str, folded: Iterable[str]) -> list[str]:
    """Return the one word that begins with ``asked``; of several none, because any may be meant."""
    begun = [word for word in folded if word.startswith(asked)] if len(asked) >= _SHORTEST_BEGINNING else []
    return begun if len(begun) == 1 else []


def hint(word: str, known: Collection[str], otherwise: str = "Remove it.") -> str:
    """Return a suggestion: the word that was meant, else the known words, else ``otherwise``."""
    meant = closest(word, known)
    if meant is not None:
        return f"Did you mean '{meant}'?"
    if not known:
        return otherwise
    more = ", …" if len(known) > _MOST_NAMED else ""
    return f"Known are: {', '.join(itertools.islice(known, _MOST_NAMED))}{more}."


def require_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that are not among the ``known`` ones, as Python does for a misspelt argument.

    Raises:
        TypeError: there is one.
    """
    for name in given:
        if name not in known:
            meant = closest(name, known)
            suggestion = f"; did you mean {meant!r}?" if meant else ""
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}{suggestion}")
