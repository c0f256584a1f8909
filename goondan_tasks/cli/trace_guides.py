"""The lines of a tree: what stands before each entry, and before what is said below it."""

from collections.abc import Sequence

#: deeper entries have their depth as a number instead: lines would take the whole screen
DEEPEST = 12

_GOES_ON, _ENDS = "│  ", "   "


def guides(depths: Sequence[int]) -> list[tuple[str, str]]:
    """Return for each entry, given by its depth, what stands before it and before the lines below it.

    The way goes up the tree from its end: only so it is known which lines go on.
    """
    found = []
    goes_on: list[bool] = []
    for depth in reversed(depths):
        has_children = len(goes_on) > depth + 1
        goes_on += [False] * (depth + 1 - len(goes_on))
        found.append(_drawn(goes_on, depth, has_children))
        del goes_on[depth + 1 :]
        goes_on[depth] = True
    return found[::-1]


def _drawn(goes_on: Sequence[bool], depth: int, has_children: bool) -> tuple[str, str]:
    inner = _GOES_ON if has_children else _ENDS
    if depth == 0:
        return "", inner
    if depth > DEEPEST:
        number = f"[{depth}] "
        return number, " " * len(number)
    upper = "".join(_GOES_ON if line else _ENDS for line in goes_on[1:depth])
    return upper + ("├─ " if goes_on[depth] else "└─ "), upper + (
        _GOES_ON if goes_on[depth] else _ENDS
    ) + inner
