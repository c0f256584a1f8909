"""Suggestions for misspelt words: the "did you mean" of every finding and error."""

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that ``word`` most likely stands for, or ``None`` if none is near."""
    folded = {candidate.casefold(): candidate for candidate in known}
    # difflib is quadratic in the length; nobody misspells a name of that many characters
    matches = difflib.get_close_matches(word[:100].casefold(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else None
