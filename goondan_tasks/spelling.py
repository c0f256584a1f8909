"""Suggestions for misspelt words: the "did you mean" of findings and errors."""

import difflib
import itertools
from collections.abc import Collection, Iterable

_MOST_NAMED = 12
# a text with thousands of wrong words beside thousands of right ones must not take minutes
_MOST_COMPARED = 500
#: the letters from which on the beginning of a word stands for it: "desc" for "description"
_SHORTEST_BEGINNING = 3


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
    """Return a sentence that helps: the word that was meant, else all there are, else ``otherwise``."""
    meant = closest(word, known)
    if meant is not None:
        return f"Did you mean '{meant}'?"
    if not known:
        return otherwise
    more = ", …" if len(known) > _MOST_NAMED else ""
    return f"Known are: {', '.join(itertools.islice(known, _MOST_NAMED))}{more}."
