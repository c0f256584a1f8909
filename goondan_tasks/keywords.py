"""Keyword arguments that a function takes as ``**fields``: a misspelt one is refused, not dropped."""

from collections.abc import Collection, Iterable

from goondan_tasks.spelling import closest


def require_keywords(function: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse keywords that are not among the ``known`` ones, as Python does for a misspelt argument.

    Raises:
        TypeError: there is one.
    """
    for name in given:
        if name not in known:
            meant = closest(name, known)
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}{hint}")
