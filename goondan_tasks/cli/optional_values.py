"""Options whose value may be missing, as in ``--watch`` and ``--watch 5``; typer has none."""

from collections import deque
from collections.abc import Sequence
from typing import Any


def with_values(words: Sequence[str], parameters: Sequence[Any]) -> list[str]:
    """Return the words of a command line with each such option as one, ``--watch=5`` or ``--watch=``.

    Its metavar stands in brackets. Where a command has arguments, the word behind the option is one of
    those: there a value needs the ``=``.
    """
    names = {name for parameter in parameters if _may_lack_value(parameter) for name in parameter.opts}
    has_arguments = any(parameter.param_type_name == "argument" for parameter in parameters)
    end = words.index("--") if "--" in words else len(words)
    rest, joined = deque(words[:end]), []
    while rest:
        word = rest.popleft()
        if word in names:
            word += "=" + (rest.popleft() if rest and not has_arguments and _is_value(rest[0]) else "")
        joined.append(word)
    return [*joined, *words[end:]]


def _may_lack_value(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and (parameter.metavar or "").startswith("[")


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word[1:2].isdigit()
